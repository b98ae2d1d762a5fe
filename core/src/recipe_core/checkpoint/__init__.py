"""Checkpoints: states, the folders of a run, and the formats.

``store.py``: the checkpoints of a run, and when one counts as whole; read it first. ``retention.py``: those that stay.
``state.py``: a model and its optimizer as one nested dict. ``background.py``: saving beside training;
``snapshot.py``: how it does without a copy of the whole state.
``formats/``: the base class, and one file for each format; ``io/``: the files that formats consist of.
``ranks/``: checkpoints with one file for each rank. ``convert/``: ``recipe convert``.
``match/``: provenance, and comparison with a run. ``inspect.py``: ``recipe inspect`` and ``recipe verify``.
``locate.py``: the checkpoint that a path means; ``manifest.py``: its files with sizes and SHA-256; ``settings.py``: the
settings of the formats.
``adapter.py``: a model's tensors under the names and shapes of others; ``lazy.py``: tensors read when they are needed.
"""
