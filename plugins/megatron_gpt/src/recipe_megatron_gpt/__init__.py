"""GPT pre-training on memory-mapped token files.

``plugin.py``: the plugin's contributions; read it first. ``settings.py``: all settings. ``model/``, ``data/``,
``prepare/``, ``tokenizer/``: the model, its batches, the preparation of token files, and tokenizers. ``checkpoint/``:
Megatron-LM's checkpoint format. ``generate.py``: the text sample at the end of a run. ``console.py``: Megatron-LM's log
line. ``variants/``: one YAML file per variant.
"""
