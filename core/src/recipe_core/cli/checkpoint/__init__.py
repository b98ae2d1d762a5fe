"""Commands about checkpoints.

``generate.py``, ``evaluate.py``: use a trained model; ``source.py``: the options by which both find it.
``plot.py``: results of ``evaluate.py`` as a picture. ``convert.py``: ``recipe convert`` and ``merge``.
``prompts.py``: prompts from the line, a file or a terminal.
"""
