"""Products in bf16 as a processor with bf16 instructions gives them, on one without: operands and results are rounded
to bf16, sums are fp32. PyTorch's own kernels for such processors do the same forty times as slowly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
_FLASH = _aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Bf16Products(TorchDispatchMode):
    """While it is entered, products and attention of bf16 tensors are computed in fp32 and rounded to bf16.

    Inside PyTorch's fused attention the probabilities stay fp32, where a processor would round them too.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in {*_PRODUCTS, _FLASH, _FLASH_BACKWARD} or args[0].dtype != torch.bfloat16:
            return func(*args, **kwargs)
        found = func(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})
        if func is _FLASH:
            output, log_sum_exp = found
            return _narrow(output), log_sum_exp
        return tuple(map(_narrow, found)) if func is _FLASH_BACKWARD else _narrow(found)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value


def _narrow(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.bfloat16)
