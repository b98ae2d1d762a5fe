"""File types of checkpoint formats, read without trust and written tensor by tensor.

``torch_save.py``: files of ``torch.save``, on ``archive.py`` (their ZIP) and ``restricted_pickle.py`` (their pickle).
``safetensors.py``: files of safetensors. ``hub_files.py``: hashes of downloaded files.
"""
