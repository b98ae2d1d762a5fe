"""``recipe compare``: ``command.py`` is its command line, ``compare.py`` compares runs, ``table.py`` and ``plot.py``
show the comparison. ``picture.py``: pictures as files. ``report/``: ``recipe report``.
"""
