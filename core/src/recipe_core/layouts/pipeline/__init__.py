"""Pipeline parallelism.

``stages.py``: a model cut into stages. ``pipeline.py``: the schedule 1F1B, in which micro batches pass from stage to
stage.
"""
