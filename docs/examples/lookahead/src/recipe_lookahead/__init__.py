"""Lookahead for any optimizer: the callback ``lookahead``."""
