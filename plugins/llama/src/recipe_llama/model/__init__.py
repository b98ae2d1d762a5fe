"""The model. ``llama.py``: module and loss; read it first. ``rotary.py``: rotary positions and their scalings.
``facts.py``: sizes. ``tensor_plan.py``: tensor parallelism. ``hf.py``: names and settings in Hugging Face folders."""
