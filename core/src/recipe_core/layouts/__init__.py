"""The layouts that the core brings: ``replicated.py``, and ``divided.py`` for those that divide the model.

Nothing is imported here: a run of one process is not to wait for what a pipeline needs.
"""
