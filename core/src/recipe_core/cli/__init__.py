"""The command ``recipe``: one file per command. Nothing in this folder imports torch.

``main.py``: the command line and its short commands; read it first. ``commands/``: ``check`` (checks in ``check/``),
``doctor`` (in ``doctor/``), and descriptions of settings. ``checkpoint/``, ``cluster/``, ``compare/``, ``data/``,
``plugin/``, ``precompile.py``: the other commands. ``show.py``: the output of ``recipe ls`` and ``recipe check``.
``options.py``: options and paths that several commands take, and the plugins. ``arguments.py``, ``completion.py``:
arguments of recipe commands, and shell completion.
"""
