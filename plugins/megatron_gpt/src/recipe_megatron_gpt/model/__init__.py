"""The model ``gpt``.

``gpt.py``: the module and its loss; read it first. ``facts.py``, ``tensor_plan.py``: its sizes, and how tensor
parallelism shards it; no torch there. ``hf.py``, ``megatron.py``: its tensors under Hugging Face's and megatron-core's
names.
"""
