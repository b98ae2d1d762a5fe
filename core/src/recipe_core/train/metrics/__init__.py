"""Metrics: measurement, files, curves and reports.

``recorder.py``: rows measured, judged and written; read it first. ``meter.py``: loss, counts and speed of the last
steps. ``writer.py``: a JSON line per row, which trackers get too: ``tracker.py``, ``tensorboard.py``.
``record_file.py``: append-only files. ``curves.py``: rows read back. ``report.py``: progress on the terminal;
``line.py``: its lines; ``results.py``: results.json; ``plotting.py``: the style of pictures. ``evaluations/``: numbers
of plugins, measured during a run and by ``recipe eval``. For that alone: ``validation.py``, the loss over validation
samples; ``harness.py``, tasks of lm-evaluation-harness.
"""
