"""Devices: what differs between them is behind one object, the engine. Other engines come with plugins.

``protocol.py``: what an engine can do; read it first. ``native.py``: PyTorch's own devices and process groups.
``select.py``, ``stack.py``, ``environment.py``, ``doctor.py``: what an engine cannot do of a run's settings, which
accelerator stack is installed, which environment variables it wants, what is wrong with it; these import no torch.
``agreement.py``: actions that succeed or fail on all ranks. ``nodes/``: the nodes of a job before a run.
``digest.py``: a tensor's hash, computed on its device.
``probe.py``: a library tried in a process of its own. ``loader.py``: micro batches on their way to the device.
``compiled.py``: counts compiled graphs. ``neuron.py``: Trainium as a device of PyTorch itself. ``precision.py``,
``peaks.py``, ``memory.py``: widths of numbers, peak arithmetic of known devices, the host's memory.
"""
