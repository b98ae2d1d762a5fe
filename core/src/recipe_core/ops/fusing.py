"""Functions that ``train.compile`` compiles beside the blocks of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_options: Mapping[str, Any] | None = None
_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def fuse(options: Mapping[str, Any] | None) -> None:
    """Have :func:`fused` compile with these options of ``torch.compile``; None: no longer.

    It holds for this process, until the next model is built.
    """
    global _options
    _options = options
    _compiled.clear()


def fused(function: Function) -> Function | None:
    """``function``, compiled into few kernels; None unless the blocks of the model are compiled one by one.

    A model that is compiled as a whole compiles what it calls.
    """
    if _options is None or torch.compiler.is_compiling():
        return None
    if function not in _compiled:
        _compiled[function] = torch.compile(function, **_options)
    return _compiled[function]  # type: ignore[return-value]
