"""The machines that the engine claims, and the settings that it refuses. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from recipe_core import Layout, Part, Train
from recipe_core.engine.machine.environment import is_on
from recipe_core.engine.machine.packages import package
from recipe_core.engine.neuron import stack
from recipe_core.engine.select import processes_here

REFUSED = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
"""They silently turn every fp32 tensor on XLA into bf16: losses, counters and optimizer states, too."""
NXD_REMEDY = (
    "install it from AWS's own index, as https://awsdocs-neuron.readthedocs-hosted.com says, or take layout=ddp, or "
    "train.engine=native"
)
"""Advice if neuronx-distributed is needed and missing."""


def refused(environment: Mapping[str, str]) -> Iterator[str]:
    """A problem for each variable of ``REFUSED`` that is set."""
    for name in REFUSED:
        if is_on(environment, name):
            yield (
                f"the environment says {name}={environment[name]}, which makes bf16 of every fp32 tensor on XLA, "
                f"unseen; unset {name}, and take train.precision=bf16 (or bf16_mixed)"
            )


def claims(device: str) -> bool:
    """True for the device ``xla``, and for ``auto`` if ``PJRT_DEVICE`` or the installed packages (torch-xla with
    Neuron's plugin) show that PyTorch/XLA reaches the accelerator."""
    if device == "xla":
        return True
    accelerated = os.environ.get("PJRT_DEVICE") in ("NEURON", "TPU") or find_spec("libneuronxla") is not None
    return device == "auto" and accelerated and find_spec("torch_xla") is not None


def pjrt_device(environment: Mapping[str, str] = os.environ) -> str:
    """The device type of PyTorch/XLA: ``PJRT_DEVICE`` if it is set, else by the installed packages."""
    if value := environment.get("PJRT_DEVICE"):
        return value.upper()
    if find_spec("libneuronxla") is not None:
        return "NEURON"
    return "TPU" if find_spec("libtpu") is not None else "CPU"


def one_process(layout: Part[Layout]) -> bool:
    """True if one process drives all devices of a run whose ``layout`` shards the model; on Neuron, each has its
    own."""
    return pjrt_device() != "NEURON"


def problems(config: object, train: Train, layout: Part[Layout] | None, processes: int | None) -> Iterator[str]:
    """Settings that the engine does not support."""
    if train.device not in ("auto", "xla"):
        yield (
            f"train.device: {train.device}, and train.engine is xla, whose device PJRT_DEVICE names "
            f"({pjrt_device()} here); leave train.device at auto, or take train.engine=native"
        )
    if find_spec("torch_xla") is None:
        yield "train.engine: xla needs torch-xla (pip install torch==2.9.0 torch-xla==2.9.0), which is not installed"
    yield from refused(os.environ)
    if train.compile:
        yield "train.compile: XLA compiles what it is given by itself; set it to false, or take train.engine=native"
    if train.precision == "fp8":
        yield "train.precision: fp8 is for train.engine=native, on CUDA; take bf16_mixed"
    if train.stochastic_rounding and pjrt_device() != "NEURON":
        yield (
            "train.stochastic_rounding: with train.engine=xla the runtime rounds, and only Neuron's does "
            f"(PJRT_DEVICE is {pjrt_device()}); switch it off, or take train.engine=native"
        )
    if layout is not None:
        yield from _layout_problems(layout)
    kind = stack.at_hand(train.device, "xla")
    if kind is not None and processes is not None:
        yield from stack.worker_problems(kind, processes_here(processes))


def _nxd_problems() -> Iterator[str]:
    """Problems with neuronx-distributed: it is not installed, or is a placeholder."""
    found = package("neuronx-distributed")
    if found is None:
        yield f"neuronx-distributed, which divides layers on Neuron over PyTorch/XLA, is not installed; {NXD_REMEDY}"
    elif found.placeholder:
        yield (
            f"neuronx-distributed {found.version} is here by name alone, an empty package of the public index, and the "
            f"real one divides layers on Neuron over PyTorch/XLA; pip uninstall neuronx-distributed, then {NXD_REMEDY}"
        )


def _layout_problems(layout: Part[Layout]) -> Iterator[str]:
    config, name = layout.config, layout.spec.name
    remedy = "take layout=ddp or layout=tp, or train.engine=native"
    if config.pp > 1:
        yield f"layout: {name} makes a pipeline, which train.engine=xla has none of; {remedy}"
    if config.data != "ddp":
        yield f"layout: {name} shares states out ({config.data}), which train.engine=xla does not; {remedy}"
    if config.tp > 1 and pjrt_device() == "NEURON":
        yield from (f"layout.tp: {problem}" for problem in _nxd_problems())
    if config.sequence_parallel:
        yield (
            "layout.sequence_parallel: with train.engine=xla what lies between the layers is not split (on Neuron), or "
            "as the compiler likes; set it to false"
        )
