"""Layouts on PyTorch/XLA devices.

``replicated.py``: copies of the model; read it first. ``divided.py``: the layouts that shard it, by ``spmd.py`` (one
process drives all devices) or ``tensor_parallel.py`` with ``cut.py`` (neuronx-distributed's layers on Neuron).
"""
