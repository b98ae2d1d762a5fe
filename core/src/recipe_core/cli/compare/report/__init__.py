"""``recipe report``: runs as one page for a browser, which needs no network.

``command.py`` is its command line, ``runs.py`` what is known of each run, ``charts.py`` the curves as data for the
page, ``page.py`` the page, ``markup.py`` its elements. ``page.js`` draws the curves by plotly; ``page.css`` is the
style.
"""
