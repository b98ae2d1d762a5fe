"""Code that runs at named moments of training, on every rank.

``callback.py``: the base class, and what a callback knows of its run. ``callbacks.py``: all callbacks of a run, as the
loop calls them. ``settings.py``: settings and checks of the core's own, without torch. ``ema.py``, ``stopping.py``,
``unfreezing.py``, ``activations.py``, ``batch_ramp.py``: the core's own.
"""
