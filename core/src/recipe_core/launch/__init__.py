"""Processes of a run: start, stop, and the records that they leave. Nothing in this folder imports torch.

``worker.py``: the rank of a process, by our supervisor, torchrun or srun; read it first. ``slurm_nodes.py``: the nodes
of a Slurm step. ``supervisor.py``: starts and watches the processes of one machine; ``tee.py`` logs their output.
``failures.py``: the failure of a rank; ``stop.py``: signals to stop. ``watch/``: hangs and slow ranks.
``cores.py``: the cores that this process may use, and how long its waiting threads keep them busy; ``contention.py``:
other programs on them.
``notice.py``: progress notices of the first seconds.
"""
