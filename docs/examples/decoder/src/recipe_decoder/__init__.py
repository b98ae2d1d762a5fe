"""A Llama-style model: the example of the tutorial "Your own model in ten minutes".

``plugin.py``: what it adds; read it first. ``settings.py``, ``facts.py``, ``tensor_plan.py``: its settings, its sizes,
and how tensor parallelism shards it; no torch there. ``model.py``: the module and its loss. ``hf.py``: the names that
Hugging Face uses.
"""
