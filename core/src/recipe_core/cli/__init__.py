"""The command ``recipe``: one file per command. Nothing in this folder imports torch.

``main.py``: the command line and its short commands; read it first. ``commands/``: check, with ``check/``, doctor, with
``doctor/``, and settings explained. ``checkpoint/``, ``cluster/``, ``compare/``, ``data.py``, ``plugin/``,
``precompile.py``: the others. ``show.py``: the output of ``recipe ls`` and ``recipe check``. ``paths.py``,
``words.py``, ``completion.py``: paths and words on the line, and completion in shells.
"""
