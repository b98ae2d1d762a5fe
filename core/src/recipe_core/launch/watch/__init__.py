"""Runs that hang, and ranks that are slow. Nothing in this folder imports torch.

``heartbeat.py``: what each thread of a rank is doing; the training loop calls it. ``watchdog.py``: the threads that
look at it; read it second. ``clerk.py``: a thread that does one thing again and again. ``board.py``: the files through
which ranks see each other's heartbeats; ``flight.py``: collectives under way; ``verdict.py``: which rank the others
wait for. ``pace.py``: the slowest rank. ``alert.py``: ``train.on_hang``. ``silence.py``: the supervisor's part.
"""
