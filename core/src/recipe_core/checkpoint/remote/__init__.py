"""Runs whose ``--out`` is an address of object storage: ``s3://bucket/run``.

``opened.py``: from an address to a working folder on this machine; read it first. ``record.py``: the file that ties
the two together; ``lock.py``: one run at a time for each address.
``checkpoints.py``: checkpoints uploaded, downloaded and removed by all ranks; ``mirror.py``: all other files.
``objects.py``: objects below an address. ``fetched.py``: a run or a checkpoint downloaded for commands that read it.
"""
