"""Fine-tuning for text classification, with Hugging Face's Trainer.

``plugin.py``: everything this plugin registers. ``run.py``: ``recipe run hf_finetune`` from start to end; read both
first. ``settings.py``: all settings; ``checks.py``: problems found before anything is loaded. ``model/``, ``data/``,
``trainer/``, ``results/``: in the order in which a run uses them. ``checkpoint.py``: the format
``hf_trainer``. ``variants/``: one YAML file per variant.
"""
