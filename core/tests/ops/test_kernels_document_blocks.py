"""Documents in FlexAttention: the squares of scores that it computes, and what it computes there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask

from recipe_core.errors import ConfigError
from recipe_core.ops import document_blocks, documents
from recipe_core.ops.attention import causal_product
from recipe_core.ops.documents import document_attention, in_blocks

WINDOWS = pytest.mark.parametrize("window", [None, 1, 100, 128, 300])


def rows(length: int, *cuts: tuple[int, ...]) -> Tensor:
    """Rows of ``length`` tokens whose documents end before the places ``cuts``; after the last one is padding."""
    places = torch.arange(length)
    ids = [sum((places >= cut).long() for cut in ends) + 1 for ends in cuts]
    return torch.stack([torch.where(places < ends[-1], row, 0) for row, ends in zip(ids, cuts, strict=True)])


IDS = rows(
    520,
    (520,), (1, 2, 3, 520), (128, 256, 384, 512), (127, 255, 383, 511, 520), (129, 257, 500), (64, 300, 301, 520),
    (200, 520),
)  # fmt: skip


@pytest.fixture
def backward_on_cpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlexAttention has no kernel for backward on CPUs, and its form without kernels refuses it there, too."""
    torch._dynamo.reset()
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    yield
    torch._dynamo.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, backward_on_cpus: None) -> None:
    """FlexAttention in its own form without kernels."""
    compiled = torch.compile(document_blocks._product, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(document_blocks, "_compiled", lambda: compiled)


@WINDOWS
@pytest.mark.parametrize("length", [512, 520, 300, 129, 128])
def test_squares_are_those_of_pytorch(length: int, window: int | None) -> None:
    ids = IDS[:, :length]

    def sees(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        inside = (ids[row, query] == ids[row, key]) & (key <= query)
        return inside if window is None else inside & (query - key < window)

    wanted = create_block_mask(sees, len(ids), None, length, length, device="cpu")
    blocks = in_blocks(ids, window).blocks
    assert blocks is not None
    names = [
        f"{kind}{side}_{table}" for side in ("kv", "q") for kind in ("", "full_") for table in ("num_blocks", "indices")
    ]
    assert len(names) == len(blocks.tables)
    for name, table in zip(names, blocks.tables, strict=True):
        assert table.dtype == torch.int32
        assert torch.equal(table, getattr(wanted, name)), name


def alone(q: Tensor, k: Tensor, v: Tensor, ids: Tensor, window: int | None) -> Tensor:
    """Each document, and the padding, as a batch of its own."""
    output = torch.zeros_like(q)
    for row, numbers in enumerate(ids):
        for number in numbers.unique():
            place = torch.nonzero(numbers == number).flatten()
            output[row, place] = causal_product(*(part[row : row + 1, place] for part in (q, k, v)), 0.0, window)[0]
    return output


def parts(ids: Tensor, heads: int, kv_heads: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    make = torch.Generator().manual_seed(2)
    return [
        torch.randn(*ids.shape, n, 16, generator=make).to(dtype).requires_grad_() for n in (heads, kv_heads, kv_heads)
    ]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("heads", "kv_heads", "window"), [(2, 2, None), (4, 2, None), (4, 2, 100), (6, 2, 3)])
def test_each_document_is_computed_as_if_it_were_alone(heads: int, kv_heads: int, window: int | None) -> None:
    ids = IDS[3:5, :300]
    qkv = parts(ids, heads, kv_heads)
    got, wanted = document_attention(*qkv, in_blocks(ids, window), 0.0), alone(*qkv, ids, window)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)
    weights = torch.randn(got.shape, generator=torch.Generator().manual_seed(3))
    found, expected = (torch.autograd.grad((output * weights).sum(), qkv) for output in (got, wanted))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=4e-6, rtol=1e-5)


@pytest.mark.usefixtures("traced")
def test_queries_that_a_rotation_left_in_fp32_are_cast() -> None:
    ids = IDS[4:5, :300]
    q, k, v = parts(ids, 2, 2, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        got = document_attention(q.float(), k.float(), v, in_blocks(ids, None), 0.0)
    assert got.dtype == torch.bfloat16
    wanted = alone(*(part.float() for part in (q, k, v)), ids, None)
    torch.testing.assert_close(got.float(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.usefixtures("backward_on_cpus")
def test_one_compiled_block_serves_all_batches() -> None:
    def block(q: Tensor, k: Tensor, v: Tensor, found: documents.Documents) -> Tensor:
        return document_attention(q, k, v, found, 0.0)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=counter, fullgraph=True)
    for ids in IDS[:6, :300].split(2):
        for window in (None, 100):
            qkv = parts(ids, 2, 2)
            got = compiled(*qkv, in_blocks(ids, window))
            torch.testing.assert_close(got, alone(*qkv, ids, window), atol=1e-6, rtol=1e-5)
            got.sum().backward()
    assert counter.frame_count == 1


def test_where_documents_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_hand(answer: bool) -> Callable[[], bool]:
        return lambda: answer

    monkeypatch.delenv("RECIPE_DOCUMENTS", raising=False)
    monkeypatch.setattr(documents, "compiler_at_hand", at_hand(True))
    assert documents._takes_blocks(128, 0.0)
    assert not documents._takes_blocks(127, 0.0)
    assert not documents._takes_blocks(128, 0.1)
    monkeypatch.setattr(documents, "compiler_at_hand", at_hand(False))
    assert not documents._takes_blocks(128, 0.0)
    monkeypatch.setattr(documents, "compiler_at_hand", at_hand(True))
    monkeypatch.setenv("RECIPE_DOCUMENTS", "mask")
    assert not documents._takes_blocks(128, 0.0)
    monkeypatch.setenv("RECIPE_DOCUMENTS", "masks")
    with pytest.raises(
        ConfigError, match="RECIPE_DOCUMENTS: 'masks' is not known; set it to flex or mask, or unset it"
    ):
        documents._takes_blocks(128, 0.0)


@pytest.mark.parametrize(("dropout", "width"), [(0.5, 16), (0.0, 8)])
def test_dropout_and_narrow_heads_take_the_mask(dropout: float, width: int) -> None:
    ids = IDS[2:3, :300]
    qkv = [torch.randn(*ids.shape, 1, width) for _ in range(3)]
    outputs = []
    for found in (in_blocks(ids, 100), documents.Documents(ids, None, documents._mask(ids, 100), 100)):
        torch.manual_seed(1)
        outputs.append(document_attention(*qkv, found, dropout))
    assert torch.equal(*outputs)
