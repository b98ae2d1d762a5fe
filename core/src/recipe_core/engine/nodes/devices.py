"""The devices of this node, as PyTorch sees them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from recipe_core.engine.machine.devices import device_kind
from recipe_core.engine.neuron.stack import device_files
from recipe_core.launch.cores import usable_cores


def look(device: str, engine: str) -> Mapping[str, Any]:
    """Kind, names and number of the devices, and the least free memory of one, as plain data.

    Args:
        device: ``train.device``.
        engine: name of the run's engine. Devices of an engine other than PyTorch's own are counted by their files in
            /dev, since its library would occupy them.

    Raises:
        ConfigError: the device is not there.
    """
    kind = device_kind(device) if engine == "native" else engine
    if kind == "cpu":
        return {"kind": kind, "count": usable_cores(), "name": "cores"}
    neurons = device_files()
    if kind != "cuda" and neurons:
        return {"kind": kind, "count": len(neurons), "name": "Neuron devices"}
    if engine != "native":
        return {"kind": kind, "count": 0, "name": ""}
    count = torch.accelerator.device_count()
    names = {name for number in range(count) if (name := _name(kind, number))}
    memory = [sizes for number in range(count) if (sizes := _memory(number)) is not None]
    return {
        "kind": kind, "count": count, "name": ", ".join(sorted(names)) or kind,
        "free": min((free for free, _ in memory), default=0), "total": min((all_ for _, all_ in memory), default=0),
    }  # fmt: skip


def _name(kind: str, number: int) -> str:
    with suppress(AttributeError, RuntimeError, NotImplementedError):  # not every extension knows it
        return str(torch.get_device_module(kind).get_device_name(number))
    return ""


def _memory(number: int) -> tuple[int, int] | None:
    with suppress(AttributeError, RuntimeError, NotImplementedError):
        free, total = torch.accelerator.get_memory_info(number)
        return int(free), int(total)
    return None
