"""Runs on other machines and in the background: ``recipe submit``, ``status``, ``logs`` and ``stop``.

``submit.py``: the command; read it first. ``limits.py``: the time limit, and the time to stop before it.
``run_status.py``: the status of a run, from the files of its folder and the batch system.
``status.py``, ``logs.py``, ``stop.py``: the other commands.
"""
