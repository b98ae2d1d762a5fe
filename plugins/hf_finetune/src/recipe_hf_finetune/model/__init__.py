"""The model ``sequence_classifier``.

``classifier.py``: the model, built from its sizes or loaded; read it first. ``source.py``: from ``model.source`` to a
folder for ``from_pretrained``. ``adapted.py``: adapters and frozen parameters, and the weights without them.
``naming.py``: names in checkpoints. ``facts.py``: parameters, FLOPs and activations before a run; no torch there.
"""
