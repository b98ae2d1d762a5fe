"""The optimizers: AdamW and LAMB, fused or foreach, with weights and states as wide as is asked.

They compute on the local parts of parameters, so that a model may mix plain tensors with DTensors of several meshes.
``build.py``: what an optimizer is built for, and the builds of these. ``adamw.py``: the states and the order of a step;
read it first. ``adam.py``: Adam's arithmetic; ``lamb.py``, ``norms.py``: LAMB and its norms. ``batch.py``,
``pieces.py``, ``shards.py``: parameters updated together, in chunks, by their local shards. ``wide.py``,
``rounding.py``: wider copies of weights, stochastic rounding.
"""

from recipe_core.train.optim.build import Trainable, build, decays, set_learning_rate

__all__ = ["Trainable", "build", "decays", "set_learning_rate"]
