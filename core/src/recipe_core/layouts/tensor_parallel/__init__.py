"""Tensor parallelism: each layer's matrices cut over several ranks, as the plan of the model says."""
