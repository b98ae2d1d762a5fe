"""Runs on other machines and in the background: ``recipe submit``, ``status``, ``logs`` and ``stop``.

``submit.py``: the command; read it first. ``limits.py``: time limit, and when to stop before it.
``standing.py``: how a run stands, from the files of its folder and the batch system.
``status.py``, ``logs.py``, ``stop.py``: the other commands.
"""
