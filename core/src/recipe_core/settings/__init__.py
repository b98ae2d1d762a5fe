"""From words and YAML to a checked job. Nothing in this folder imports torch.

``job.py``: a recipe with every name looked up and every setting checked; read it first.
``variants.py``, ``fill.py``: overrides laid over a recipe, settings classes filled. ``values.py``, the judge: text and
plain data read as the types that a settings class declares, with a message for each mistake. ``plain.py``: the way
back.
``parts.py``: the sections of parts turned into contributions with their settings.
``schedule.py``: the learning rate of each step. ``optimizer.py``: memory of the core's optimizers.
``log_format.py``: the form of the lines on the console. ``describe.py``: settings explained.
``field_words.py``: what other tools call them.
``facts.py``: sizes of a model and its data before anything is built.
"""
