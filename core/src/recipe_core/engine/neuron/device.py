"""Trainium as a native device of PyTorch (TorchNeuron): how it differs from other devices.

From https://awsdocs-neuron.readthedocs-hosted.com, TorchNeuron of release 2.33 (public beta). Not run on hardware here;
the tests use a stand-in.
"""

from __future__ import annotations

from typing import Any

import torch

from recipe_core.errors import ConfigError

NAME = "neuron"
"""The device type. Devices have no index (never ``neuron:0``): the runtime gives each process its own."""


def is_here() -> bool:
    """True if PyTorch knows the device. Does not touch it, which must wait for the process group."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == NAME


def take() -> None:
    """Touch the device for the first time, after the process group was created.

    A mesh sets an untouched device by its index, which this device does not have.

    Raises:
        ConfigError: there is no device, or another process uses it.
    """
    if torch.accelerator.is_available():
        try:
            torch.empty(1, device=NAME)
            return
        except RuntimeError as error:
            problem = f" ({error})"
    else:
        problem = ""
    raise ConfigError(
        f"train.device: no device of type {NAME!r} can be had{problem}; `recipe doctor` says what is wrong with the "
        "driver, and `neuron-ls` which process has the NeuronCores"
    )


def compile_options(device: torch.device) -> dict[str, Any]:
    """Arguments of ``torch.compile`` on ``device``.

    Neuron's backend compiles whole graphs of fixed shapes: it refuses ``dynamic=True``, and a graph break would cost
    an execution for each part. It ignores ``mode``.
    """
    return {"backend": NAME, "fullgraph": True, "dynamic": False} if device.type == NAME else {}


def is_narrow(device: torch.device) -> bool:
    """True if ``device`` stores int64 in 32 bits and has no float64: growing sums are computed on the host."""
    return device.type == NAME
