"""Checkpoint formats, one file each. A format moves bytes; it decides nothing.

``base.py``: the base class; read it first. ``build.py``: builds a plugin's. ``dcp.py``, ``dcp_metadata.py``,
``dcp_write.py``: torch.distributed.checkpoint's. ``hf.py``, ``hf_config.py``: Hugging Face's. ``single.py``: one file.
"""
