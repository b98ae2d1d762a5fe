"""Checkpoint formats of PyTorch/XLA's libraries, read and written without them.

``nxd.py``, ``xser.py``: the formats; read them first. ``rank_files.py``: the file of a rank; ``xser_file.py``: files of
torch_xla's serialization; ``zero1.py``: ZeRO-1's states joined. ``shards.py``: shards on devices copied to the host.
``testing.py``: files as torch_xla saves and loads them, for tests.
"""
