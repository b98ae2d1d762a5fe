"""Devices: an engine is one rank's device and its communication with other ranks. Plugins bring further engines.

``protocol.py``: the interface of an engine; read it first. ``native.py``: PyTorch's own devices and process groups.
``select.py``, ``packages.py``, ``environment.py``: settings that an engine refuses, installed packages, environment
variables; these import no torch. ``neuron/``: AWS Neuron, and nothing else here knows it. ``agreement.py``: actions
that succeed or fail on all ranks. ``nodes/``: the nodes of a job before a run. ``loader.py``: micro batches moved to
the device. ``compiled.py``: counts of compiled graphs. ``digest.py``: hashes of tensors. ``dtensor.py``: DTensors told
from other tensors. ``staging.py``: copies on the host. ``probe.py``: devices, compilers and libraries of this machine.
``precision.py``, ``fp8.py``, ``peaks.py``, ``memory.py``: widths of numbers and threads, peak FLOP/s of known devices,
the host's memory.
"""
