"""Devices: an engine is one rank's device and its communication with other ranks. Plugins bring further engines.

``protocol.py``: the interface of an engine; read it first. ``native.py``: PyTorch's own devices and process groups.
``select.py``: settings that an engine refuses. ``machine/``: packages and devices of this machine. Neither imports
torch, apart from ``machine/devices.py``. ``neuron/``: AWS Neuron, and nothing else here knows it. ``agreement.py``:
actions that succeed or fail on all ranks. ``nodes/``: the nodes of a job before a run. ``loader.py``: micro batches
moved to the device. ``compiled.py``: counts of compiled graphs. ``digest.py``: hashes of tensors. ``dtensor.py``:
DTensors told from other tensors. ``staging.py``: copies on the host. ``precision.py``, ``fp8.py``, ``memory.py``:
widths of numbers and threads, the host's memory.
"""
