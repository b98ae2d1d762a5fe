"""Checkpoints: states, the folders of a run, and the formats.

``saving/``: the checkpoints of a run; read it first. ``state.py``: a model and its optimizer as one
nested dict.
``formats/``: the base class, and one file per format; ``io/``: the files that formats consist of.
``ranks/``: checkpoints with one file for each rank. ``convert/``: ``recipe convert``.
``match/``: provenance, and comparison with a run. ``inspect.py``: ``recipe inspect`` and ``recipe verify``.
``locate.py``: from a path to a checkpoint; ``manifest.py``: its files with sizes and SHA-256; ``settings.py``: settings
of the formats.
``adapter.py``: conversion between native and foreign tensor names and shapes; ``lazy.py``: tensors read on demand.
"""
