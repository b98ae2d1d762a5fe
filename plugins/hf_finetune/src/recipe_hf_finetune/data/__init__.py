"""The dataset ``text_classification``.

``splits.py``: texts and labels of each split, checked; read it first. ``files.py``, ``hub.py``, ``pairs.py`` (with
``rewrite.py``): from files, from a hub, or made of Python's own text. ``tasks.py``: the tasks of GLUE. ``encode.py``,
``vocabulary.py``: texts as token ids. ``samples.py``: batches for any loop. ``facts.py``: known beforehand.
"""
