"""Contributions of plugins, and their discovery. A plugin author starts here.

``specs``: the frozen dataclasses that a plugin returns, each with a name, a settings class and a target.
``facts.py``: sizes of models, datasets and optimizers.
``train.py``: the section ``train`` of every recipe.
``hooks.py``, ``loop_hooks.py``: the functions that a plugin implements to return them, each with a complete example.
``kinds.py``: the hook, the word and the class of each kind.
``version.py``: the version of this interface, and the refusal of plugins made for a newer one.
``registry.py``: finds plugins, collects their contributions, isolates broken plugins.
``target.py``, ``static/``: targets of contributions, and checks that they exist.
``finding.py``: a line of ``recipe doctor``.

Nothing in this folder imports torch.
"""
