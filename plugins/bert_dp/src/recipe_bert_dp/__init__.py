"""BERT pre-training and its data.

``plugin.py``: everything this plugin registers; read it first. ``settings.py``: all settings. ``model/``,
``data/``, ``prepare/``: the model, its batches, and how text becomes shards. ``checkpoint.py``: the format
``neuron_bert``. ``fill_mask.py``: ``recipe generate``. ``console.py``, ``closing.py``: log line and closing summary of
a run. ``testing.py``: batches for tests. ``variants/``: one YAML file per variant.
"""
