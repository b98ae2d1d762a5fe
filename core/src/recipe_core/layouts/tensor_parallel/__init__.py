"""Tensor parallelism: each layer's matrices cut over several ranks, as the plan of the model says.

``plan.py``: the plan applied to a model; read it first. ``roles.py``: each role's computation. ``collectives.py``:
communication, forward and backward. ``rows.py``, ``heads.py``: matrices cut by rows, and output matrices of others.
``rng.py``: random numbers of ranks that share a layer.
"""
