"""``recipe convert``: one checkpoint as another, checked before it appears.

``convert.py``: tensor by tensor; read it first. ``outputs.py``: a model's outputs with the weights before and after.
``card.py``: generation_config.json and a model card beside an export for Hugging Face.
"""
