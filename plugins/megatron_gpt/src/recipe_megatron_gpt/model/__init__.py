"""The model ``gpt``.

``gpt.py``: the module and its loss. ``facts.py``, ``tensor_plan.py``: its sizes, and how tensor parallelism cuts it; no
torch there. ``hf.py``, ``megatron.py``: its tensors under Hugging Face's and Megatron's names.
"""
