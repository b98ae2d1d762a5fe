"""The model ``bert_pretraining``.

``bert.py``: the module and its loss; ``layer.py``: one block. ``facts.py``, ``tensor_plan.py``: its sizes, and how
tensor parallelism cuts it; no torch there. ``hf.py``: its tensors under Hugging Face's names.
"""
