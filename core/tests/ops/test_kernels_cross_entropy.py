"""The cross entropy that never holds its logits in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from recipe_core.ops import chunks
from recipe_core.ops.cross_entropy import aligned, linear_cross_entropy, losses_and_hits
from recipe_core.ops.documents import loss_weights, masked_mean_loss
from recipe_core.ops.fusing import fuse

TOKENS, WIDTH, VOCABULARY = 400, 24, 333


@pytest.fixture(autouse=True)
def _cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks even of the few logits that tests have time for."""
    monkeypatch.setattr(chunks, "_CPU_LEAST", 0)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(3)
    hidden = torch.randn(20, 20, WIDTH, generator=make).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=make).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (20, 20), generator=make)


def reference(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float().mT, labels, reduction="none")


class Largest(TorchDispatchMode):
    """Sizes of the largest tensors that any operation gives, by type."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements[tensor.dtype] = max(self.elements.get(tensor.dtype, 0), tensor.numel())
        return result


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("scale", ["mean", "each"])
def test_fp32_equals_whole_logits(scale: str, averaged: bool) -> None:
    hidden, weight, labels = inputs()
    weights = torch.rand(20, 20) / 400 if scale == "each" else torch.full((20, 20), 1 / 400)
    losses = linear_cross_entropy(hidden, weight, labels, averaged=averaged)
    wanted = reference(hidden, weight, labels)
    torch.testing.assert_close(losses, wanted, atol=1e-6, rtol=1e-6)
    got = torch.autograd.grad((losses * weights).sum(), [hidden, weight])
    expected = torch.autograd.grad((wanted * weights).sum(), [hidden, weight])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_as_good_as_whole_logits(autocast: bool) -> None:
    exact = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs(torch.bfloat16)]
    exact = [t.float().detach().requires_grad_() if t.is_floating_point() else t for t in exact]
    wanted = reference(*exact)
    expected = torch.autograd.grad(wanted.mean(), exact[:2])
    errors = {}
    for name, function in (("ours", linear_cross_entropy), ("whole", reference)):
        hidden, weight, labels = exact if autocast else inputs(torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = function(hidden, weight, labels)
        got = torch.autograd.grad(losses.mean(), [hidden, weight])
        assert losses.dtype == torch.float32
        assert [g.dtype for g in got] == [hidden.dtype, weight.dtype]
        errors[name] = [(losses - wanted).norm().item()]
        errors[name] += [(g.float() - e).norm().item() for g, e in zip(got, expected, strict=True)]
    for ours, whole in zip(errors["ours"], errors["whole"], strict=True):
        assert ours <= 1.2 * whole


def test_derivatives_in_float64() -> None:
    hidden, weight, labels = (t.double() if t.is_floating_point() else t for t in inputs())
    hidden, weight = hidden[:, :2, :5].detach().requires_grad_(), weight[:17, :5].detach().requires_grad_()
    labels = labels[:, :2] % 17
    # Losses are fp32, so differences are taken with steps that fp32 can tell apart.
    assert torch.autograd.gradcheck(
        lambda h, w: linear_cross_entropy(h, w, labels), (hidden, weight), eps=1e-2, atol=1e-3, rtol=1e-2
    )


@pytest.mark.parametrize("averaged", [False, True])
def test_gradients_accumulate(averaged: bool) -> None:
    hidden, weight, labels = inputs()
    linear_cross_entropy(hidden, weight, labels, averaged=averaged).mean().backward()
    once = weight.grad.clone()
    linear_cross_entropy(hidden, weight, labels, averaged=averaged).mean().backward()
    assert torch.equal(weight.grad, 2 * once)


def test_the_mean_of_fp32_losses_computes_no_logits_twice() -> None:
    products = {}
    for averaged in (False, True):
        hidden, weight, labels = inputs()
        with FlopCounterMode(display=False) as counter:
            linear_cross_entropy(hidden, weight, labels, averaged=averaged).mean().backward()
        products[averaged] = counter.get_total_flops()
    assert products[False] - products[True] == 2 * TOKENS * WIDTH * VOCABULARY


@pytest.mark.parametrize("kept", [0.0, 0.3, 1.0])
def test_the_masked_mean_computes_no_logits_twice(kept: float) -> None:
    mask = torch.rand(20, 20, generator=torch.Generator().manual_seed(5)) < kept
    mask[3] = False  # a row of padding
    batch = {"loss_mask": mask}
    grads, products = {}, 0
    for ours in (False, True):
        of = hidden, weight, _ = inputs()
        with FlopCounterMode(display=False) as counter:
            losses = linear_cross_entropy(*of, averaged=True, weights=loss_weights(batch)) if ours else reference(*of)
            (masked_mean_loss(losses, batch)["loss"] * 300).backward()
        grads[ours], products = (hidden.grad, weight.grad), counter.get_total_flops()
    torch.testing.assert_close(grads[True], grads[False])
    # The logits, and the gradient of `hidden`; a product that is added in place is not counted. Where all weights are
    # zero, nothing says by what the losses were multiplied, and both are computed again.
    assert products == (4 if kept == 0.0 else 2) * 2 * TOKENS * WIDTH * VOCABULARY


def test_gradients_that_do_not_follow_the_weights() -> None:
    grads = {}
    for ours in (False, True):
        of = _, weight, _ = inputs()
        weights = torch.full((20, 20), 1 / 400)
        losses = linear_cross_entropy(*of, averaged=True, weights=weights) if ours else reference(*of)
        (losses * torch.linspace(0, 1, 20)).sum().backward()
        grads[ours] = weight.grad
    torch.testing.assert_close(grads[True], grads[False])


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory(dtype: torch.dtype, averaged: bool) -> None:
    with Largest() as largest:
        linear_cross_entropy(*inputs(dtype), averaged=averaged).mean().backward()
    whole = TOKENS * VOCABULARY
    assert largest.elements[torch.float32] <= whole / 8
    assert largest.elements.get(torch.bfloat16, 0) == (whole if dtype == torch.bfloat16 else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluation_keeps_nothing(dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs(dtype)
    with Largest() as largest, torch.no_grad():
        losses = linear_cross_entropy(hidden, weight, labels)
    assert not losses.requires_grad
    assert max(largest.elements.values()) <= TOKENS * VOCABULARY / 8
    torch.testing.assert_close(losses, reference(hidden, weight, labels).detach(), atol=1e-5, rtol=1e-5)


def test_one_token() -> None:
    hidden, weight, labels = inputs()
    one = linear_cross_entropy(hidden[:1, :1], weight, labels[:1, :1])
    torch.testing.assert_close(one, reference(hidden, weight, labels)[:1, :1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("few", [False, True])
def test_a_bias_is_that_of_the_linear_layer(few: bool, dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs(dtype)
    bias = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(6)).to(dtype).requires_grad_()
    wanted = F.cross_entropy(F.linear(hidden, weight, bias).float().mT, labels, reduction="none")
    of = hidden, weight, labels, bias
    losses = losses_and_hits(*of)[0] if few else linear_cross_entropy(*of)
    torch.testing.assert_close(losses, wanted, atol=2e-6, rtol=2e-6)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    for ours, theirs in zip(
        *(torch.autograd.grad(value.mean(), [hidden, weight, bias]) for value in (losses, wanted)), strict=True
    ):
        assert ours.dtype == dtype
        assert (ours.float() - theirs.float()).norm() <= tolerance * theirs.float().norm()


def test_hits_are_where_the_label_has_the_largest_logit() -> None:
    hidden, weight, labels = inputs()
    best = F.linear(hidden, weight).argmax(-1)
    labels = torch.where(torch.arange(20) % 3 == 0, best, labels)
    losses, hits = losses_and_hits(hidden, weight, labels)
    assert torch.equal(hits, best == labels)
    assert 0 < hits.sum() < hits.numel()
    assert losses.requires_grad
    assert not hits.requires_grad
    with torch.no_grad():
        evaluated = losses_and_hits(hidden, weight, labels)
    torch.testing.assert_close(evaluated[0], losses.detach())
    assert torch.equal(evaluated[1], hits)


def test_logits_of_few_tokens_are_computed_once() -> None:
    hidden, weight, labels = inputs()
    with FlopCounterMode(display=False) as counter:
        losses_and_hits(hidden, weight, labels)[0].mean().backward()
    assert counter.get_total_flops() == 3 * 2 * TOKENS * VOCABULARY * WIDTH


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_logits_are_computed_at_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    hidden, weight, labels = inputs(dtype)
    losses, hits = losses_and_hits(hidden, weight, labels)
    logits = F.linear(hidden, weight).float().flatten(0, 1)
    wanted = F.cross_entropy(logits, labels.flatten(), reduction="none").view_as(labels)
    assert torch.equal(losses, wanted)
    assert torch.equal(hits, F.linear(hidden, weight).argmax(-1) == labels)
    tensors = [hidden, weight]
    assert all(
        map(torch.equal, torch.autograd.grad(losses.mean(), tensors), torch.autograd.grad(wanted.mean(), tensors))
    )


def test_no_label_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    hidden, weight, labels = inputs()
    with pytest.raises((IndexError, RuntimeError)):
        linear_cross_entropy(hidden, weight, torch.full_like(labels, -100))


@pytest.fixture
def fusing() -> Iterator[CompileCounterWithBackend]:
    """As where the blocks of a model are compiled one by one, without code generation; it counts the graphs."""
    counter = CompileCounterWithBackend("aot_eager")
    fuse({"backend": counter, "fullgraph": True})
    yield counter
    fuse(None)
    torch._dynamo.reset()


def found(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor) -> list[Tensor]:
    losses, hits = losses_and_hits(hidden, weight, labels, bias)
    weights = torch.linspace(0.5, 1.5, losses.numel()).view(losses.shape)
    grads = torch.autograd.grad((losses * weights).mean(), (hidden, weight, bias))
    return [losses.detach(), hits, *grads]


def test_compiled_losses_are_those_of_the_chunks(fusing: CompileCounterWithBackend) -> None:
    tensors = inputs(torch.bfloat16)
    bias = torch.randn(VOCABULARY).bfloat16().requires_grad_()
    with torch.no_grad():
        wanted_alone = linear_cross_entropy(*tensors)
    fused_alone, fused = linear_cross_entropy(*tensors), found(*tensors, bias)
    fuse(None)
    assert fusing.frame_count == 2  # with hits and without
    assert torch.equal(fused_alone, wanted_alone)
    assert fused_alone.requires_grad
    for got, wanted in zip(fused, found(*tensors, bias), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("biased", [False, True])
def test_a_vocabulary_is_filled_up_to_what_a_gpu_reads_at_once(biased: bool) -> None:
    hidden, weight, labels = inputs(torch.float64)
    bias = torch.randn(VOCABULARY, dtype=torch.float64).requires_grad_() if biased else None
    wide, wide_bias = aligned(weight, bias)
    assert wide.shape == (336, WIDTH)
    assert wide_bias is not None
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    got, hits = losses_and_hits(hidden, wide, labels, wide_bias)
    wanted, wanted_hits = losses_and_hits(hidden, weight, labels, bias)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(hits, wanted_hits)
    for one, other in zip(*(torch.autograd.grad(losses.sum(), leaves) for losses in (got, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert aligned(wide, None)[0] is wide
