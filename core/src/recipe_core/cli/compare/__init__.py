"""``recipe compare``: ``command.py`` is its command line, ``compare.py`` lays runs over each other, ``table.py`` and
``plot.py`` show them.
"""
