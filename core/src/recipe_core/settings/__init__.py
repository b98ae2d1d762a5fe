"""From words and YAML to a checked job. Nothing in this folder imports torch.

``job.py``: a recipe with every name looked up and every setting checked; read it first.
``variants.py``, ``fill.py``, ``text.py``: overrides laid over a recipe, settings classes filled, text turned into
values. ``direct.py``: settings that are plainly right, built without pydantic.
``schedule.py``: the learning rate of each step. ``facts.py``: sizes of a model and its
data before anything is built.
"""
