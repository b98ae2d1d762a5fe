"""The dataset ``text_classification``.

``splits.py``: texts and labels of all splits, checked; read it first. ``examples.py``: one split. ``files.py``,
``hub.py``, ``pairs.py`` (with ``rewrite.py``): samples from files, from the hub, or made from Python's own text.
``tasks.py``: the tasks of GLUE. ``encode.py``, ``vocabulary.py``: texts to token ids. ``samples.py``: batches for the
core's loop. ``facts.py``: counts and lengths before a run.
"""
