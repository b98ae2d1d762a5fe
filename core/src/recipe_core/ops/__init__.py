"""Operations that several models share, where PyTorch's own are slow on a CPU or hold too much.

``attention.py``, ``group_attention.py``: causal, and within groups of tokens. ``cross_entropy.py``, ``chunks.py``: the
loss without all logits in fp32; ``vocabulary.py``: the same where ranks share the output matrix. ``dropout.py``,
``norm.py``, ``initial.py``: dropout, a residual sum with dropout and norm, initial values by name.
"""
