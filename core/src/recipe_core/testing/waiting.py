"""A device without values: on any machine, it finds operations at which a step would wait for an accelerator.

It is PyTorch's ``meta``, which computes shapes only. The code takes the same branches as on an accelerator, and an
operation that needs a value fails. Matrix products of bf16 under autocast are not covered: ``meta`` has no autocast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recipe_core.engine import native, protocol
from recipe_core.settings.job import Job
from recipe_core.train.loop import Trainer
from recipe_core.train.run import run

HIDDEN = torch.device("meta")
_SIZED_BY_VALUES = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal")
"""Operations whose result, or its shape, the host needs immediately."""


class HostWaitsError(AssertionError):
    """An operation that makes the host wait for the device."""


class NeverWait(TorchDispatchMode):
    """Raises an error at each operation that makes the host wait for the device, in forward and in backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Raises:
        HostWaitsError: the host would wait.
        """
        kwargs, name = kwargs or {}, func._schema.name.removeprefix("aten::")
        hidden = any(isinstance(leaf, Tensor) and leaf.device == HIDDEN for leaf in tree_leaves((args, kwargs)))
        if hidden and (name in _SIZED_BY_VALUES or (name in ("index", "index_put_") and _is_mask(args[1]))):
            raise HostWaitsError(f"{name} needs the values of a tensor on the device")
        if name in ("copy_", "_to_copy"):
            _refuse_copy(name, args, kwargs)
        return func(*args, **kwargs)


class _NeverCopyNumbers(TorchFunctionMode):
    """Raises an error if a tensor on the device is made from Python numbers, a copy that the host waits for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device) == HIDDEN:
            raise HostWaitsError(
                f"{func.__name__} copies numbers to the device; fill it there, or copy without waiting"
            )
        if func is Tensor.new_tensor and args[0].device == HIDDEN and device is None:
            raise HostWaitsError("new_tensor copies numbers to the device; fill it there, or copy without waiting")
        return func(*args, **kwargs)


def _is_mask(indices: Sequence[Tensor | None]) -> bool:
    """True for a boolean index, whose result has a shape that depends on its values."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _refuse_copy(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if name == "copy_":
        source, target = args[1].device, args[0].device
        waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    else:
        source = args[0].device
        target = torch.device(kwargs.get("device") or source)
        waits = not kwargs.get("non_blocking", False)
    if source == HIDDEN != target:
        raise HostWaitsError(f"{name} brings a tensor of the device to the host")
    if target == HIDDEN != source and waits:
        raise HostWaitsError(f"{name} to the device waits for its end; expected non_blocking=True")


class HiddenEngine(native.NativeEngine):
    """PyTorch's own engine on :data:`HIDDEN`; counts the reads of the meter, and returns ones."""

    def __init__(self, timeout: float) -> None:
        super().__init__("cpu", timeout)
        self.device = HIDDEN
        self.readings = 0

    def read(self, tensor: Tensor) -> Tensor:
        """Return ones; this is the only read per row at which the host may wait."""
        self.readings += 1
        return torch.ones(tensor.shape, dtype=tensor.dtype)

    def synchronize(self) -> None:
        """Do nothing; the meter calls it after a read."""


def readings(job: Job, out: Path) -> int:
    """Run all steps of ``job`` on the hidden device, without checkpoints; return how often the host waited for it.

    Raises:
        HostWaitsError: a step waits for the device elsewhere than where its row of metrics is read.
        RuntimeError, NotImplementedError: the same, in an operation that PyTorch itself refuses on ``meta``.
    """
    engine = HiddenEngine(job.train.timeout)
    with patch.object(protocol, "start", lambda *_: engine), patch("recipe_core.train.run.Trainer", _GuardedTrainer):
        run(job, out, dry_run=True)
    return engine.readings


class _GuardedTrainer(Trainer):
    """The trainer of a run, under the two modes above."""

    def train(self) -> bool:
        with _NeverCopyNumbers(), NeverWait():
            return super().train()
