"""The command ``recipe``: one file per command. Nothing in this folder imports torch.

``main.py``: the command line and its short commands; read it first. ``check/``, ``checkpoint/``, ``compare/``,
``data.py``, ``doctor_command.py`` with ``doctor/``, ``precompile.py``: the others. ``show.py``: the output of
``recipe ls`` and ``recipe check``. ``paths.py``, ``completion.py``: paths on the line, and completion in shells.
"""
