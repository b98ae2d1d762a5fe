"""Numbers that are measured of a model during training, and by ``recipe eval --tasks``.

``model.py``: the model as an evaluation sees it; read it first. ``access.py``: the model of a run, under its layout;
``stored.py``: that of a checkpoint. ``measuring.py``: all evaluations of a run, as the loop calls them.
``likelihoods.py``: windows and batches of texts. ``settings.py``: settings and checks of the core's own, without torch;
``held_out.py``, ``text.py``: the core's own.
"""
