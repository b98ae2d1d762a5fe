"""The settings that the engine of a run refuses, and engines that are not installed. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

from recipe_core.engine.machine.packages import instance
from recipe_core.engine.neuron import stack
from recipe_core.hooks.specs import EngineSpec, Layout, Part
from recipe_core.hooks.target import call, call_list
from recipe_core.hooks.train import Train

_MISSING = (
    "the plugin recipe-xla, which runs on it, is not installed; pip install 'recipe-xla[runtime]', or take "
    "train.device=cpu"
)


def spec_of(engine: Part[EngineSpec]) -> EngineSpec:
    """The spec of an engine."""
    return engine.spec


def engine_problems(
    engine: Part[EngineSpec], train: Train, layout: Part[Layout] | None, processes: int | None = None
) -> Iterator[str]:
    """Settings that the engine does not support."""
    spec = spec_of(engine)
    if spec.problems:
        yield from call_list(spec.problems, f"engine {spec.name!r}", engine.config, train, layout, processes)


def one_process(engine: Part[EngineSpec], layout: Part[Layout]) -> bool:
    """True if one process drives all devices of the run (SPMD)."""
    spec = spec_of(engine)
    return bool(spec.one_process and divides(layout) and call(spec.one_process, f"engine {spec.name!r}", layout))


def divides(layout: Part[Layout]) -> bool:
    """True if the layout divides the model."""
    return layout.spec.divides


def native_problems(config: object, train: Train, layout: Part[Layout] | None, processes: int | None) -> Iterator[str]:
    """Settings that PyTorch's own devices do not support; see :class:`recipe_core.hooks.specs.EngineSpec`."""
    if train.device == "xla":
        if lacks_xla_engine():
            yield f"train.device: xla, and {_MISSING}"
        else:
            yield "train.engine: native, and train.device is xla; take train.engine=xla, or another device"
    if problem := unused_accelerator(train.device):
        yield problem
    if train.precision == "fp8":
        yield from fp8_problems(layout)
    kind = stack.at_hand(train.device, "native")
    if kind is not None and processes is not None:
        yield from stack.worker_problems(kind, processes_here(processes))


def fp8_problems(layout: Part[Layout] | None) -> Iterator[str]:
    """Problems of ``train.precision=fp8`` apart from the device; see :mod:`recipe_core.engine.fp8`."""
    otherwise = "take train.precision=bf16_mixed"
    if find_spec("torchao") is None:
        install = "pip install 'recipe-core[fp8]'"
        yield f"train.precision: fp8 needs torchao, which is not installed; {install}, or {otherwise}"
    if layout is not None and divides(layout):
        yield (
            f"train.precision: fp8 multiplies whole layers, and layout={layout.spec.name} divides them; take "
            f"layout=ddp, or {otherwise}"
        )


def unused_accelerator(device: str) -> str:
    """A problem if only PyTorch/XLA reaches this machine's accelerator and its engine is not installed; else empty."""
    if device != "auto" or find_spec("torch_xla") is None or not lacks_xla_engine():
        return ""
    named = os.environ.get("PJRT_DEVICE")
    if named in ("NEURON", "TPU"):
        return f"the environment says PJRT_DEVICE={named}, and {_MISSING}"
    return f"this machine has Neuron over PyTorch/XLA, and {_MISSING}" if find_spec("libneuronxla") else ""


def lacks_xla_engine() -> bool:
    """True if the plugin with the engine for PyTorch/XLA is not installed."""
    return find_spec("recipe_xla") is None


def places(device: str, engine: str) -> tuple[int, str] | None:
    """The most processes that a Trainium instance supports, and the name of their devices; None on other machines."""
    counts = stack.WORKERS.get(instance()) if stack.at_hand(device, engine) else None
    return (counts[-1], "NeuronCores") if counts else None


def processes_here(processes: int) -> int:
    """The number of a run's processes on this machine, as torchrun and srun report it."""
    from recipe_core.launch.worker import worker  # whose imports cost time that `recipe show` saves

    me = worker()
    return me.local_world_size if me else processes
