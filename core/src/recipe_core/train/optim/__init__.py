"""The optimizers: AdamW and LAMB, fused or foreach, with weights and states as wide as is asked.

They compute on the local parts of parameters, so that a model may mix plain tensors with DTensors of several meshes.
``build`` makes one; ``adamw`` has the states and the order of a step.
"""

from recipe_core.train.optim.build import build, decays, set_learning_rate

__all__ = ["build", "decays", "set_learning_rate"]
