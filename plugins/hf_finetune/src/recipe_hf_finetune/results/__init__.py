"""Results of a fine-tuning.

``metrics.py``: the metrics of GLUE. ``predictions.py``, ``pictures.py``: predictions as a file and as a confusion
matrix, learning curves. ``closing.py``: results.json and the closing summary. ``inference.py``: ``recipe generate``
and ``eval``.
"""
