"""Layouts: how a model is replicated or sharded across the ranks of a run.

``parallel.py``: a model under its layout; read it first. ``settings.py``: the layouts' settings. ``replicated.py``: one
process, and DistributedDataParallel. ``divided.py``: the layouts that shard a model, by ``sharded.py`` (FSDP2),
``pipeline/``, and ``tensor_parallel/``. ``reduction/``: averaging, norm and clipping of gradients. ``materialise.py``:
values of a model that was built on the meta device. ``patterns.py``, ``ties.py``: submodules by pattern, tied
parameters. ``built.py``: checks of what plugins build. ``outputs.py``: parts of a model's output by name. ``samples/``:
a dataset with its data wrappers, and mixtures.

Nothing is imported here: a run of one process does not wait for the imports of a pipeline.
"""
