"""Devices: an engine is one rank's device and its communication with other ranks. Plugins bring further engines.

``protocol.py``: the interface of an engine; read it first. ``native.py``: PyTorch's own devices and process groups.
``select.py``, ``stack.py``, ``environment.py``, ``doctor.py``: settings that an engine refuses, the accelerator stack
that is installed, environment variables, problems of the machine; these import no torch. ``agreement.py``: actions that
succeed or fail on all ranks. ``nodes/``: the nodes of a job before a run. ``loader.py``: micro batches moved to the
device. ``compiled.py``: counts of compiled graphs. ``digest.py``: hashes of tensors. ``probe.py``: a library tried in a
process of its own. ``neuron.py``: Trainium as a native device of PyTorch. ``precision.py``, ``fp8.py``, ``peaks.py``,
``memory.py``: widths of numbers, peak FLOP/s of known devices, the host's memory.
"""
