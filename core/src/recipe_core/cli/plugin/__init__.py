"""``recipe plugin``: create a plugin, and check one.

``command.py``: the commands. ``new.py``: writes a package from ``templates/``. The checks, and the output of
``recipe plugin check``, are in ``testing/conformance/``, which registers itself as an entry point.
"""
