"""Metrics: measured, written, read back and shown.

``meter.py``: loss, counts and speed of the last steps. ``writer.py``: a JSON line per row, which trackers get too:
``tracker.py``, ``tensorboard.py``. ``record_file.py``: files that grow record by record. ``curves.py``: rows read back;
``golden.py``: a stored curve that a run is held to. ``report.py``: progress on the terminal; ``line.py``: its lines;
``results.py``: results.json; ``plotting.py``: the style of pictures. For ``recipe eval``: ``validation.py``, the loss
over validation samples; ``harness.py``, tasks of lm-evaluation-harness.
"""
