"""AWS Neuron, as far as the core runs on it: natively. Over PyTorch/XLA it is for the plugin recipe-xla.

``stack.py``: which stack is installed, and the processes that an instance takes; read it first. ``device.py``: Trainium
as a device of PyTorch. ``peaks.py``: its peak FLOP/s. ``doctor.py``: findings of ``recipe doctor``. The findings about
both stacks are here, since who lacks the plugin needs them most. ``stack.py`` and ``doctor.py`` import no torch.
"""
