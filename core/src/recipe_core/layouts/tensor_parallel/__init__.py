"""Tensor parallelism: the matrices of each layer sharded over several ranks, as the model's tensor plan says.

``plan.py``: a plan applied to a model; read it first. ``roles.py``: the computation of each role. ``inputs.py``: which
inputs of a module are of the residual stream. ``collectives.py``: communication, forward and backward. ``rows.py``,
``heads.py``: matrices cut by rows, and output matrices of other packages. ``rng.py``: random numbers of the ranks that
share a layer.
"""
