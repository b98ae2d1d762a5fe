"""The model ``sequence_classifier``.

``classifier.py``: built of sizes, or loaded; ``source.py``: what ``model.source`` names; ``facts.py``: its sizes.
"""
