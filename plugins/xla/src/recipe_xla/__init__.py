"""PyTorch/XLA as an engine: read ``plugin.py`` first, then ``engine.py``.

``settings.py``: all settings. ``machine.py``, ``variables.py``, ``doctor.py``, ``compiler.py``: what is asked before a
run, without torch. ``batches.py``, ``collectives.py``, ``mesh.py``: parts of the engine. ``neuronx.py``: the adapter of
neuronx-distributed. ``layouts/``, ``optim.py``: its builds of the core's layouts and optimizers. ``checkpoint/``: the
formats nxd and xser, and shards of devices on the host.
"""
