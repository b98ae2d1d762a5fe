"""Detection of runs that hang and of ranks that are slow. Nothing in this folder imports torch.

``heartbeat.py``: what each thread of a rank is doing, as the training loop reports it; read it first. ``watchdog.py``:
the threads that check it; read it second. ``heartbeat_files.py``: the files through which ranks read each other's
heartbeats; ``periodic.py``: the threads that write and read them. ``diagnosis.py``: which rank the others wait for;
``flight.py``: collectives under way. ``stragglers.py``: the slowest rank. ``alert.py``: the command ``train.on_hang``.
``stall.py``: the supervisor's check, when no rank can end the run itself.
"""
