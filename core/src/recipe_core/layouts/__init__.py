"""The layouts that the core brings: ``replicated.py``, and ``divided.py`` for those that divide the model.

``parallel.py``: a model after its layout was applied; read it first. ``settings.py``: the layouts' settings.
``sharded.py``: FSDP2; ``pipeline.py``, ``stages.py``: a pipeline and its stages; ``tensor_parallel/``: shards of
layers. ``reducer.py``, ``gradients.py``: gradients averaged, their norm and clipping. ``materialise.py``: values of a
model that was built without them. ``patterns.py``, ``ties.py``: submodules by pattern, and tied parameters.

Nothing is imported here: a run of one process is not to wait for what a pipeline needs.
"""
