"""Contributions of plugins, and how the core finds them. A plugin author starts here.

``specs.py``: the frozen dataclasses that a plugin returns, each with a name, a settings class and where its code is.
``loop_specs.py``: those of the training loop: losses, optimizers, schedules, trackers.
``facts.py``: sizes that models, datasets and optimizers state.
``train.py``: the section ``train`` that every recipe has.
``launcher.py``: launchers, and the submission that they are given.
``hooks.py``: the functions that a plugin implements to return them, each with a complete example.
``version.py``: the version of this interface, and plugins made for a newer one.
``registry.py``: finds plugins, collects their contributions, keeps broken plugins apart.
``target.py``, ``resolve.py``, ``source.py``: the code that contributions name, and whether it is there.
``finding.py``: a line of ``recipe doctor``, which engines return.

Nothing in this folder imports torch.
"""
