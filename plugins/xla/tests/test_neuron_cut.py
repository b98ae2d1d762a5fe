"""Shares of a vocabulary that does not divide, as Neuron's processes hold them."""

from __future__ import annotations

import pytest
import torch

from recipe_xla.layouts.cut import _shard_of


@pytest.mark.parametrize(("length", "size"), [(8, 4), (9, 4), (5, 4), (1, 4), (3, 8)])
def test_shares_put_together_are_the_whole_and_zeros(length: int, size: int) -> None:
    whole = torch.arange(1.0, 2 * length + 1).reshape(length, 2)
    shares = [_shard_of(whole, 0, rank, size) for rank in range(size)]
    parts = [share.of(whole, rank) for rank, share in enumerate(shares)]
    assert len({part.shape for part in parts}) == 1
    assert sum(share.held for share in shares) == length
    together = torch.cat(parts)
    assert torch.equal(together[:length], whole)
    assert not together[length:].any()
