"""The model ``bert_pretraining``.

``bert.py``: the module and its loss; read it first. ``layer.py``: one block of the encoder. ``facts.py``,
``tensor_plan.py``: parameters, FLOPs and activations, and the tensor-parallel plan; no torch there. ``hf.py``: its
tensors under the names of Hugging Face, NVIDIA and Neuron.
"""
