"""Packages, devices, compilers and libraries of this machine.

``environment.py``: environment variables for a run. ``packages.py``: installed packages, which are not imported.
``probe.py``: devices, compilers and libraries. ``devices.py``: the device of a rank.
``peaks.py``: peak FLOP/s of known devices.
"""
