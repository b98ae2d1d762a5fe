"""The core's transforms: changes of a model before the layout divides it.

``settings.py``: their settings, without torch. ``freeze.py``: parameters that are not trained. ``lora.py``: low-rank
adapters, and their merge into the weights. ``names.py``: the patterns of both. ``facts.py``: the sizes of a transformed
model, measured on the model without values.
"""
