"""Optimizers: AdamW and LAMB, fused or foreach, with the dtypes of weights and states that the settings ask for.

They compute on local shards of parameters, so that a model may mix plain tensors with DTensors of several meshes.
``build.py``: the input of an optimizer, and the builds of these two. ``adamw.py``: the states and the order of a step;
read it first. ``adam.py``: Adam's arithmetic; ``lamb.py``, ``norms.py``: LAMB and its norms. ``batch.py``,
``slices.py``, ``shards.py``: parameters updated together, in chunks, by their local shards. ``upcast.py``,
``rounding.py``: fp32 copies of weights and states, stochastic rounding.
"""

from recipe_core.train.optim.build import Trainable, build, decays, set_learning_rate

__all__ = ["Trainable", "build", "decays", "set_learning_rate"]
