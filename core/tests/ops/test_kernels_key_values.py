"""Attention in groups of heads, with windows and with keys of earlier tokens, and the cache that keeps these."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recipe_core import KeyValueCache, grouped_query_attention
from recipe_core.checkpoint.inference.decoder import Decoder


def plain(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Attention with whole matrices of scores."""
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    queries, keys = q.shape[-2], k.shape[-2]
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    seen = (distance >= 0) & (distance < (window or keys))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize(("queries", "keys"), [(12, 12), (1, 12), (5, 12), (1, 1)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_query_attention(kv_heads: int, queries: int, keys: int, window: int | None) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 4, queries, 8, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, keys, 8, requires_grad=True) for _ in range(2))
    found, wanted = grouped_query_attention(q, k, v, window), plain(q, k, v, window)
    torch.testing.assert_close(found, wanted)
    grad = torch.randn_like(wanted)
    for ours, theirs in zip(
        torch.autograd.grad(found, (q, k, v), grad), torch.autograd.grad(wanted, (q, k, v), grad), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_cache_keeps_all_in_order_while_it_grows() -> None:
    cache, seen = KeyValueCache(700), torch.randn(2, 2, 1, 3, 700, 4)
    for stop in (5, 6, 300, 301, 700):
        new = slice(cache.length, stop)
        for number in (0, 1):
            keys, values = cache.block(number).extend(*(part[..., new, :] for part in seen[number]))
            assert torch.equal(keys, seen[number, 0, ..., :stop, :])
            assert torch.equal(values, seen[number, 1, ..., :stop, :])
        cache.length = stop
    cache.length = 0
    keys, _ = cache.block(0).extend(*(part[..., 9:11, :] for part in seen[0]))
    assert torch.equal(keys, seen[0, 0, ..., 9:11, :])


class Summing(nn.Module):
    """Logits that show which tokens it was given: their sum, and their number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        sums = batch["tokens"].cumsum(1)
        return torch.stack([sums, torch.arange(1, sums.shape[1] + 1).expand_as(sums)], -1) * self.weight


def test_a_model_without_a_cache_gets_all_tokens_of_the_window() -> None:
    decoder = Decoder(Summing(), 4)
    fed = [decoder.feed(ids).tolist() for ids in ([1, 2], [3], [4], [5], [6])]
    assert fed == [[3, 2], [6, 3], [10, 4], [12, 3], [18, 4]]  # the full window slid by a quarter
