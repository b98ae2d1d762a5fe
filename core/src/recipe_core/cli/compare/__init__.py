"""``recipe compare``: ``compare.py`` lays runs over each other, ``table.py`` and ``plot.py`` show them."""
