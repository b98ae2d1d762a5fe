"""``train.precision=fp8``: its emulation on a CPU against rounding written out here, and what is refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from recipe_core.engine import select
from recipe_core.engine.fp8 import to_fp8
from recipe_core.engine.precision import described
from recipe_core.errors import ConfigError
from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.train.run import run

CPU = torch.device("cpu")
needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed")


def rounded(tensor: Tensor, kind: torch.dtype) -> Tensor:
    """To 8 bits and back, scaled so that the largest value is the largest that there is."""
    scale = torch.finfo(kind).max / tensor.abs().max().double()
    return (tensor * scale.float()).to(kind).float() / scale.float()


def block() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16), nn.Linear(16, 5))


@needs_torchao
def test_products_are_those_of_rounded_matrices() -> None:
    plain, converted = block(), block()
    to_fp8([converted], CPU)
    assert [(name, p.shape, p.dtype) for name, p in converted.named_parameters()] == [
        (name, p.shape, p.dtype) for name, p in plain.named_parameters()
    ]
    x, gradient = torch.randn(8, 32), torch.randn(8, 48)
    given = x.clone().requires_grad_()
    output = converted[0](given)
    output.backward(gradient)
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    weight, narrow, error = rounded(plain[0].weight, e4m3), rounded(x, e4m3), rounded(gradient, e5m2)
    exact = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(output, narrow @ weight.T + plain[0].bias, **exact)
    torch.testing.assert_close(given.grad, error @ weight, **exact)
    torch.testing.assert_close(converted[0].weight.grad, error.T @ narrow, **exact)
    assert not torch.allclose(output, plain[0](x), rtol=1e-3, atol=1e-3)
    assert torch.equal(converted[3](torch.ones(1, 16)), plain[3](torch.ones(1, 16)))  # 5 does not divide by 16


@needs_torchao
def test_a_model_without_such_layers_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.precision: fp8 found no linear layer .* divide by 16; take train"):
        run(resolve(toy.registry(), "toy", ["train.precision=fp8", "train.device=cpu"]), tmp_path / "run")


def test_problems_are_named_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    layout = SimpleNamespace(spec=SimpleNamespace(name="tp", divides=True))
    assert list(select.fp8_problems(layout)) == [  # type: ignore[arg-type]
        "train.precision: fp8 needs torchao, which is not installed; pip install 'recipe-core[fp8]', or take "
        "train.precision=bf16_mixed",
        "train.precision: fp8 multiplies whole layers, and layout=tp divides them; take layout=ddp, or take "
        "train.precision=bf16_mixed",
    ]


@pytest.mark.parametrize(
    ("device", "capability", "message"),
    [("mps", None, "not on mps"), ("cuda", (8, 0), r"8\.9 or more .*, and this one has 8\.0")],
)
def test_devices_without_such_products_are_refused(
    device: str, capability: tuple[int, int] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda given: capability)
    with pytest.raises(ConfigError, match=message):
        to_fp8([block()], torch.device(device))


def test_the_opening_words_say_that_a_cpu_emulates() -> None:
    assert described("cpu", "fp8") == "fp8 (emulated, and slow: no CPU multiplies in 8 bits)"
    assert described("cuda", "fp8") == "fp8"
