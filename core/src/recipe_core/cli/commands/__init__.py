"""Commands whose code has a folder of its own, which is imported when one is called.

``check.py``: ``recipe check``. ``doctor.py``: ``recipe doctor``.
"""
