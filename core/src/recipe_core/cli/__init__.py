"""The command ``recipe``: one file per command. Nothing in this folder imports torch.

``main.py``: the command line and its short commands; read it first. ``show.py``: what ``recipe ls`` and ``recipe
check`` print. ``completion.py``: completion in shells.
"""
