"""LAMB against its formula, written down plainly, and against an implementation that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recipe_core import Train
from recipe_core.layouts.parallel import Parallel
from recipe_core.train.optim import adam, adamw, build, lamb, slices


@pytest.fixture(params=["fused", "foreach"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both implementations; the second is for devices without a fused kernel."""
    if request.param == "foreach":
        for module in (adam, adamw):
            monkeypatch.setattr(module, "has_fused_adamw", lambda device, dtype: False)
    return request.param


def model(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 32), nn.LayerNorm(32), nn.Linear(32, 10), nn.Conv1d(4, 3, 4)).to(dtype)


def give_gradients(module: nn.Module, step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in module.parameters():
        p.grad = (torch.randn(p.shape, generator=generator) * scale).to(p.dtype)


class Plain:
    """LAMB as NVIDIA's kernels compute it (two stages, ``use_nvlamb`` off), one tensor after the other.

    The trust ratio needs a decay other than zero there; here it goes by the number of dimensions.
    """

    def __init__(self, parameters: list[nn.Parameter], train: Train) -> None:
        self.parameters, self.train, self.count = parameters, train, 0
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]

    @torch.no_grad()
    def step(self) -> list[float]:
        """One step; the trust ratios of the matrices."""
        train, (beta1, beta2), ratios = self.train, self.train.betas, []
        self.count += 1
        norm = torch.stack([p.grad.norm() for p in self.parameters if p.grad is not None]).norm()
        clip = norm / train.clip if train.clip and norm > train.clip else 1.0
        for p, (m, v) in zip(self.parameters, self.moments, strict=True):
            assert p.grad is not None
            gradient = p.grad / clip
            m.copy_(beta1 * m + (1 - beta1) * gradient)
            v.copy_(beta2 * v + (1 - beta2) * gradient * gradient)
            update = (m / (1 - beta1**self.count)) / ((v / (1 - beta2**self.count)).sqrt() + train.eps)
            ratio: float | Tensor = 1.0
            if p.ndim > 1:
                update = update + train.weight_decay * p
                if p.norm() != 0 and update.norm() != 0:
                    ratio = p.norm() / update.norm()
                if train.trust_clip:
                    ratio = min(ratio, train.trust_clip)
                ratios.append(float(ratio))
            p.sub_(train.lr * ratio * update)
        return ratios


def pair(train: Train, steps: int = 6) -> tuple[nn.Module, nn.Module, list[list[float]]]:
    """A model trained by ours, with the loop's clipping, and one by the formula; the latter's trust ratios."""
    ours, reference = model(), model()
    with torch.no_grad():
        for module in (ours, reference):
            module[2].weight.zero_()  # a tensor whose norm is zero at first
    made, plain, ratios = build(ours.named_parameters(), train), Plain(list(reference.parameters()), train), []
    for step in range(steps):
        for module in (ours, reference):
            give_gradients(module, step, scale=3.0 if step % 2 else 0.01)  # norms above and below the limit
        Parallel(ours).clip(train.clip)
        made.step()
        ratios.append(plain.step())
    return ours, reference, ratios


@pytest.mark.parametrize("chunk", [16, 1 << 18])
@pytest.mark.parametrize("batch", [1, 1 << 20])
@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.0}, {"trust_clip": 0.5}, {"clip": 0.0}])
def test_equals_the_formula(settings: dict[str, Any], batch: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_CPU_CHUNK", chunk)
    monkeypatch.setattr(lamb, "_CPU_UPDATES", batch)
    train = Train(optimizer="lamb", **{"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, **settings})
    ours, reference, ratios = pair(train)
    for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
        # torch's clipping divides by the norm + 1e-6, NVIDIA's by the norm
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6 if train.clip else 1e-13)
    highest = max(max(step) for step in ratios)
    assert highest == 0.5 if train.trust_clip else highest > 1.0
    assert ratios[0][1] == min(1.0, train.trust_clip or 1.0)  # the weight of norm zero


def test_clipping_happens_once() -> None:
    """The optimizer by itself leaves the gradients' norm alone: the loop has seen to it."""
    small, large = model(), model()
    for module, scale in ((small, 1.0), (large, 1e3)):
        give_gradients(module, 0, scale)
        train = Train(optimizer="lamb", eps=1e-30, clip=1.0)
        optimizer = build(module.named_parameters(), train)
        optimizer.step()
        state = optimizer.state[module[0].weight]
        torch.testing.assert_close(state["exp_avg"], module[0].weight.grad * 0.1)


def test_biases_and_norms_take_the_step_of_adamw() -> None:
    ours, reference = model(), model()
    for module, name in ((ours, "lamb"), (reference, "adamw")):
        optimizer = build(module.named_parameters(), Train(optimizer=name, lr=0.02))  # type: ignore[arg-type]
        for step in range(3):
            give_gradients(module, step)
            optimizer.step()
    for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
        assert p.equal(q) == (p.ndim < 2)


def test_norms_of_large_tensors_lose_nothing() -> None:
    """fp32 sums over 2**24 values in one go are off by 1e-4 and more; here they are summed chunk by chunk."""
    weight = nn.Parameter(torch.full((4096, 4096), 0.5))
    optimizer = build([("weight", weight)], Train(optimizer="lamb", lr=0.01, weight_decay=0.0))
    weight.grad = torch.ones_like(weight)
    optimizer.step()  # the ratio is 0.5 / 1
    torch.testing.assert_close(weight[0, :4].detach(), torch.full((4,), 0.495), rtol=1e-6, atol=0)


@pytest.mark.peer
@pytest.mark.parametrize("case", ["long past the beginning", "without moments", "from the beginning, without decay"])
def test_equals_pytorch_optimizer(case: str) -> None:
    """Its LAMB has no bias correction (``adam_debias``: none of the rate either) and limits the weight's norm to 10.

    So it is the same formula where bias correction does nothing: after many steps, and where the moments keep nothing.
    And where it only scales an update by a number, which the trust ratio takes out again: without weight decay.
    """
    peers = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
    settings: dict[str, Any] = {"lr": 0.02, "betas": (0.9, 0.99), "weight_decay": 0.1, "eps": 1e-12}
    settings |= {"without moments": {"betas": (0.0, 0.0)}}.get(case, {})
    settings |= {"from the beginning, without decay": {"weight_decay": 0.0}}.get(case, {})
    ours, reference = model(), model()
    matrices = [(n, p) for n, p in ours.named_parameters() if p.ndim > 1]
    made = build(matrices, Train(optimizer="lamb", **settings))
    theirs = [p for p in reference.parameters() if p.ndim > 1]
    peer = peers.Lamb(theirs, weight_decouple=False, adam_debias=True, **settings)
    peer.clamp = float("inf")
    if case == "long past the beginning":
        for _, p in matrices:
            made._state(p)["step"].fill_(1e6)  # type: ignore[operator]
    for step in range(5):
        for module in (ours, reference):
            give_gradients(module, step)
        made.step()
        peer.step()
    for (_, p), q in zip(matrices, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-9)
