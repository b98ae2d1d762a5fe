"""``recipe report``: runs as one HTML page, which needs no network.

``command.py`` is its command line, ``runs.py`` reads the runs, ``charts.py`` turns curves into data for the page,
``page.py`` writes the page, ``markup.py`` its elements. ``page.js`` draws the curves with plotly; ``page.css`` is
the style.
"""
