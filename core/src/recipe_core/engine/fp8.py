"""Matrix products in 8-bit floats (``train.precision=fp8``), by torchao.

Weights stay fp32, and everything else is as with ``bf16_mixed``. Inputs, weights and gradients of the blocks' linear
layers are scaled by their largest value and rounded to 8 bits (e4m3, gradients e5m2) before each product; see
https://arxiv.org/abs/2209.05433.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from recipe_core.errors import ConfigError

_WIDTH = 16
"""The kernels require sides that divide by this."""
_MIN_CAPABILITY = (8, 9)
"""The first compute capability (Ada) with products of 8-bit floats."""
_HINT = "take train.precision=bf16_mixed"


def to_fp8(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Convert the linear layers in ``blocks`` to fp8 products; a CPU emulates them.

    Names, dtypes and values of parameters do not change.

    Raises:
        ConfigError: the device does not support fp8, or no layer fits.
    """
    _require(device)
    with _quiet_import():
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        from torchao.float8.float8_linear import Float8Linear

        config, converted = Float8LinearConfig(emulate=device.type == "cpu"), 0
        for block in blocks:
            convert_to_float8_training(block, config=config, module_filter_fn=_fits)
            converted += sum(isinstance(layer, Float8Linear) for layer in block.modules())
    if not converted:
        raise ConfigError(
            f"train.precision: fp8 found no linear layer in the model's blocks whose sides divide by {_WIDTH}; {_HINT}"
        )


def _fits(layer: nn.Module, name: str) -> bool:
    return all(isinstance(side, int) and side % _WIDTH == 0 for side in (layer.in_features, layer.out_features))


def _require(device: torch.device) -> None:
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise ConfigError(f"train.precision: fp8 runs on CUDA, and emulated on a CPU, not on {device.type}; {_HINT}")
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        least, here = (".".join(map(str, pair)) for pair in (_MIN_CAPABILITY, capability))
        raise ConfigError(
            f"train.precision: fp8 needs a GPU of compute capability {least} or more (Ada, Hopper, Blackwell), and "
            f"this one has {here}; {_HINT}"
        )


@contextmanager
def _quiet_import() -> Iterator[None]:
    # torchao warns of kernels for other devices.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
