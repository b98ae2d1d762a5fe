"""``recipe compare``: ``command.py`` is its command line, ``compare.py`` lays runs over each other, ``table.py`` and
``plot.py`` show them. ``picture.py``: pictures as files. ``report/``: ``recipe report``.
"""
