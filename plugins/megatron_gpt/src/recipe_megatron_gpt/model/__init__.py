"""The model ``gpt``.

``gpt.py``: the module and its loss; read it first. ``facts.py``, ``tensor_plan.py``: its sizes and its tensor-parallel
plan; no torch there. ``hf.py``, ``megatron.py``: its tensors under the names of Hugging Face and megatron-core.
"""
