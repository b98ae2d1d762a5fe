"""The checkpoints of a run: when one is saved, complete, kept and removed.

``store.py``: their folders, and the manifest that completes each; read it first. ``background.py``: saving while
training continues; ``snapshot.py``: a snapshot that does not copy the whole state. ``retention.py``: which ones are
kept. ``folders.py``: names, leftovers of killed saves, and what is set aside.
"""
