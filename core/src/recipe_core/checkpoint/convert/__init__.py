"""``recipe convert``: convert a checkpoint to another format and verify it before it gets its name.

``convert.py``: tensor by tensor; read it first. ``outputs.py``: a model's outputs with the weights before and after.
``card.py``: generation_config.json and the model card of an export for Hugging Face.
"""
