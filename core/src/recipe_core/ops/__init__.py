"""Operations that several models share, where PyTorch's own are slow on a CPU or need too much memory.

``attention.py``, ``group_attention.py``: causal attention, and attention within packed segments; ``key_values.py``: the
cache of generation. ``documents.py``, ``document_blocks.py``: rows of several documents, which a causal model keeps
apart.
``cross_entropy.py``, ``chunks.py``: the loss without all logits in fp32; ``vocabulary.py``: the same with a
vocabulary-parallel output matrix; ``fusing.py``: what ``train.compile`` compiles beside the blocks. ``dropout.py``,
``norm.py``, ``initial.py``: dropout, a residual sum with dropout and norm, initial values by name.
"""
