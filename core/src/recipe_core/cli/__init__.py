"""The command ``recipe``: one file per command. Nothing in this folder imports torch.

``main.py``: the command line and its short commands; read it first. ``check/``: does a job fit the machine, the files
and the disk? ``doctor/``: what is installed, and whether it works. ``compare/``: runs side by side. ``show.py``: what
``recipe ls`` and ``recipe check`` print. ``completion.py``: completion in shells.
"""
