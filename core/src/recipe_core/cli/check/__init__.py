"""The checks of ``recipe check`` beyond those that precede every run, which are in ``train/start/check/``.

``line.py``: all checks of a command line; read it first. ``target.py``: other machines. ``node_table.py``: comparison
of the nodes of a job.
"""
