"""Devices: what differs between them is behind one object, the engine.

``protocol.py``: what an engine can do; read it first. ``native.py``: PyTorch's own devices and process groups.
``select.py``, ``stack.py``, ``environment.py``: which engine a run takes, which accelerator stack is installed, and the
environment variables that it wants; these import no torch.
``neuron.py``: Trainium as a device of PyTorch itself. ``precision.py``, ``peaks.py``, ``memory.py``: widths of numbers,
peak arithmetic of known devices, the host's memory.
"""
