"""Checkpoints: what a state is, when one is written, and in which bytes.

``store.py``: the checkpoints of a run, and when one counts as whole; read it first. ``state.py``: a model and its
optimizer as one nested dict. ``background.py``: saving beside training.
``formats/``: one file for each format; ``io/``: the files that formats consist of; ``ranks/``: one file for each rank.
``convert.py``: ``recipe convert``; ``inspect.py``: ``recipe inspect`` and ``recipe verify``.
``adapter.py``: a model's tensors under the names and shapes of others; ``lazy.py``: tensors read when they are needed.
"""
