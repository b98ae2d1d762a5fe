"""``recipe prepare ... --on EXECUTOR --parts N``: the parts of a preparation in other processes. No torch.

``schedule.py``: submits parts, and those again that were lost; read it first. ``parts_folder.py``: the folder of the
parts beside the output. ``progress.py``: the line of progress. ``task.py``: runs one part. ``local.py``, ``slurm.py``:
the core's executors; a plugin adds others with the hook ``register_executors``.
"""
