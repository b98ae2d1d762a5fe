"""Processes of a run: how they start, how they stop, and what they leave behind. Nothing in this folder imports torch.

``worker.py``: how a process learns its rank, from our supervisor, torchrun or srun; read it first. ``slurm_nodes.py``:
the nodes of a step of Slurm.
``supervisor.py``: starts and watches the processes of one machine; ``tee.py`` keeps their output.
``failures.py``: why a rank failed; ``stop.py``: the flag that signals set. ``watch/``: hangs and slow ranks.
``cores.py``: the cores that this process may use, and how long its waiting threads keep them busy.
``notice.py``: what a terminal shows of the first seconds.
"""
