"""From command line arguments and YAML to a checked job. Nothing in this folder imports torch.

``job.py``: a recipe with all names looked up and all settings checked; read it first.
``sections.py``: the sections of recipe, variants, files and overrides, before any name is looked up. ``variants.py``,
``fill.py``: overrides merged into a recipe, settings classes filled. ``values.py``: text and plain
data read as the types that a settings class declares, with a message for each mistake; ``plain.py``: the reverse.
``parts.py``: contributions with their settings, from the sections of parts.
``schedule.py``: the learning rate of each step.
``log_format.py``: the form of the lines on the console. ``describe.py``: settings explained.
``field_words.py``: their names in other tools.
``facts.py``: sizes of a model, its data and its optimizer before anything is built.
"""
