"""Checks of a plugin's code that do not import it.

``resolve.py``: targets of contributions. ``source.py``: functions and classes in the source of a module.
"""
