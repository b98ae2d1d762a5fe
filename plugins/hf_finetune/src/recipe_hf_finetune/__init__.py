"""Fine-tuning for text classification, with Hugging Face's Trainer.

``plugin.py``: everything this plugin adds, by name. ``run.py``: ``recipe run hf_finetune`` from start to end; read
both first. ``settings.py``: all settings; ``checks.py``: problems that are found before anything is loaded.
``model/``, ``data/``, ``trainer/``, ``results/``: in the order in which a run uses them. ``checkpoint.py``: the format
``hf_trainer``. ``variants/``: one YAML file per variant.
"""
