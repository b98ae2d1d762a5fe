"""The decoder of Llama, Qwen, Mistral and SmolLM: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

``plugin.py``: the plugin's contributions; read it first. ``settings.py``: the settings of the model. ``model/``: the
module, its sizes, its tensor plan, and Hugging Face's names. ``variants/``: one YAML file per variant.
"""
