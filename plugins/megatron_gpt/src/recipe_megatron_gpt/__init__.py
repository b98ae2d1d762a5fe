"""GPT pre-training on memory-mapped token files.

``plugin.py``: everything this plugin adds, by name; read it first. ``settings.py``: all settings. ``model/``,
``data/``, ``prepare/``, ``tokenizer/``: the model, its batches, how text becomes token files, and tokenizers.
``checkpoint/``: Megatron-LM's checkpoint format. ``inference/``: ``recipe generate`` and ``eval``. ``generate.py``:
the closing words of a run. ``console.py``: Megatron-LM's log line. ``variants/``: one YAML file per variant.
"""
