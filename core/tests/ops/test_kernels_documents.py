"""Documents of a row that a causal model keeps apart, against each document alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from recipe_core.ops.attention import causal_product
from recipe_core.ops.documents import Documents, document_attention, document_positions, documents_of

ROWS = {
    "one": [1] * 12,
    "padded": [1] * 5 + [2] * 4 + [0] * 3,
    "single tokens": [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 5, 6],
    "all padding": [0] * 12,
    "the same again": [1] * 5 + [2] * 4 + [0] * 3,
    "whole": [1] * 12,
    "also whole": [1] * 12,
}
IDS = torch.tensor(list(ROWS.values()))
DOCUMENTS = [
    (row, slice(int(places[0]), int(places[-1]) + 1))
    for row, ids in enumerate(IDS)
    for places in [torch.nonzero(ids == number).flatten() for number in ids.unique()]
]


GROUPED = pytest.mark.parametrize(("heads", "window"), [(1, None), (4, None), (1, 3), (4, 3), (4, 12)])
"""Heads of the queries that share keys, and the window."""


def masked(ids: Tensor, window: int | None = None) -> Documents:
    """As devices other than CPUs get them."""
    return documents_of(ids.to("cpu"), window)._replace(lengths=None)


def parts(dtype: torch.dtype = torch.float32, heads: int = 1) -> list[Tensor]:
    """``heads`` times as many heads of queries as the three of keys."""
    make = torch.Generator().manual_seed(2)
    return [torch.randn(*IDS.shape, 3 * n, 16, generator=make).to(dtype).requires_grad_() for n in (heads, 1, 1)]


def alone(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Each document as a batch of its own."""
    output = torch.zeros_like(q)
    for row, place in DOCUMENTS:
        output[row, place] = causal_product(*(part[row : row + 1, place] for part in (q, k, v)), 0.0, window)[0]
    return output


def gradients(output: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    return torch.autograd.grad((output.float() * weights).sum(), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_document_is_computed_as_if_it_were_alone(dtype: torch.dtype) -> None:
    qkv = parts(dtype)
    got, wanted = document_attention(*qkv, documents_of(IDS), 0.0), alone(*qkv)
    assert torch.equal(got, wanted)  # the same kernel with the same shapes
    for ours, theirs in zip(gradients(got, qkv), gradients(wanted, qkv), strict=True):
        assert torch.equal(ours, theirs)


@GROUPED
def test_groups_of_heads_and_a_window(heads: int, window: int | None) -> None:
    """Each head by itself, with the keys of its group, and each token with those of its document and window."""
    qkv = parts(heads=heads)
    got = document_attention(*qkv, documents_of(IDS, window), 0.0)
    q, k, v = qkv[0], *(part.repeat_interleave(heads, 2) for part in qkv[1:])
    places = torch.arange(IDS.shape[1])
    distance = places[:, None] - places
    seen = (IDS[:, :, None] == IDS[:, None, :]) & (distance >= 0) & (distance < (window or 99))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / 4
    wanted = torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1), v)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(gradients(got, qkv), gradients(wanted, qkv), strict=True):
        torch.testing.assert_close(ours, theirs, atol=4e-6, rtol=1e-5)


@GROUPED
def test_a_mask_gives_the_same(heads: int, window: int | None) -> None:
    qkv = parts(heads=heads)
    with sdpa_kernel(SDPBackend.MATH):
        got = document_attention(*qkv, masked(IDS, window), 0.0)
        found = gradients(got, qkv)
    wanted = alone(*qkv, window)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(found, gradients(wanted, qkv), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("documents", [documents_of, masked])
def test_padding_is_finite(documents: object, window: int | None) -> None:
    assert callable(documents)
    qkv = parts()
    output = document_attention(*qkv, documents(torch.zeros_like(IDS), window), 0.0)
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(output, qkv))


@GROUPED
@pytest.mark.parametrize("documents", [documents_of, masked])
def test_dropout_stays_within_a_document(documents: object, heads: int, window: int | None) -> None:
    """With the identity as values, the output is the probabilities."""
    assert callable(documents)
    batch, sequence = IDS.shape
    q, k = torch.randn(batch, sequence, heads, sequence), torch.randn(batch, sequence, 1, sequence)
    v = torch.eye(sequence)[None, :, None].expand(batch, -1, -1, -1)
    dropped = document_attention(q, k, v, documents(IDS, window), 0.5).movedim(2, 0)
    inside = (IDS[:, :, None] == IDS[:, None, :]).tril().triu(1 - (window or sequence))
    assert not dropped[:, ~inside].any()
    assert 0 < (dropped[:, inside] > 0).float().mean() < 0.8


def test_positions_restart() -> None:
    expected = torch.zeros_like(IDS)
    for row, place in DOCUMENTS:
        expected[row, place] = torch.arange(place.stop - place.start)
    assert torch.equal(document_positions(IDS), expected)


@GROUPED
def test_a_graph_has_no_values(heads: int, window: int | None) -> None:
    """Where values cannot be read, as under torch.compile, the mask is used."""

    def forward(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
        return document_attention(q, k, v, documents_of(ids, window), 0.0)

    qkv = parts(heads=heads)
    compiled = torch.compile(forward, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*qkv, IDS), forward(*qkv, IDS), atol=1e-6, rtol=1e-5)
    torch._dynamo.reset()


def test_causal_product_is_that_of_pytorch() -> None:
    q, k, v = parts()
    wanted = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    assert torch.equal(causal_product(q, k, v, 0.0), wanted)
