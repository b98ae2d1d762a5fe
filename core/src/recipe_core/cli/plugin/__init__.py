"""``recipe plugin``: create a plugin, and check one.

``command.py``: the commands. ``new.py``: writes a package from ``templates/``. ``check.py``: chooses the plugins to
check, and prints the outcomes; the checks themselves are in ``testing/conformance/``.
"""
