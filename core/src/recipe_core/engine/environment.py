"""Environment variables that a Neuron run should have, set where the user did not set them. Imports no torch.

The libraries read them when they are imported, and the C library when a process starts: so they are set before either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from recipe_core.engine import stack
from recipe_core.files import home
from recipe_core.hooks.train import Train
from recipe_core.launch.worker import worker

REFUSED = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
"""They make bf16 of every fp32 tensor on XLA, silently: losses, counters and optimizer states included."""
_OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Variable:
    """One environment variable, with the value that a run should have."""

    name: str
    value: str
    why: str


def is_on(environment: Mapping[str, str], name: str) -> bool:
    """Whether a variable is set to anything that does not mean no."""
    return environment.get(name, "").lower() not in _OFF


def refused(environment: Mapping[str, str]) -> Iterator[str]:
    """A problem for each variable that no run on XLA takes."""
    for name in REFUSED:
        if is_on(environment, name):
            yield (
                f"the environment says {name}={environment[name]}, which makes bf16 of every fp32 tensor on XLA, "
                f"unseen; unset {name}, and take train.precision=bf16 (or bf16_mixed)"
            )


def compiled_folder() -> Path:
    """Where compiled graphs are kept from run to run, unless the user's own variables name another place."""
    return home() / "compiled"


def variables(train: Train, processes: int, several_machines: bool, tp: bool = False) -> list[Variable]:
    """What a run of ``train`` should have, by the stack that it uses.

    Args:
        train: its settings.
        processes: of the whole run.
        several_machines: whether some of them are elsewhere.
        tp: whether the model is divided by tensors.
    """
    kind = stack.at_hand(train.device, train.engine)
    found = list(_legacy(train)) if kind == "legacy" else list(_native(processes, tp)) if kind == "native" else []
    if kind != "legacy" and stack.package("torch-xla") and train.engine != "xla":
        found.append(Variable("USE_TORCH_XLA", "0", "or transformers takes the run for one on XLA"))
    if train.compile and kind is None:
        folder = compiled_folder() / "inductor"
        found.append(Variable("TORCHINDUCTOR_CACHE_DIR", str(folder), "what torch.compile made once is kept"))
    if kind is not None and several_machines:
        found += _network()
    return found


def _legacy(train: Train) -> Iterator[Variable]:
    yield Variable(
        "NEURON_CC_FLAGS", "--model-type=transformer --retry_failed_compilation",
        "the compiler optimises for transformers, and tries again what failed in an earlier run",
    )  # fmt: skip
    yield Variable("NEURON_FUSE_SOFTMAX", "1", "a faster softmax in attention")
    if train.precision == "bf16":
        yield Variable("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1", "bf16 weights lose small updates otherwise")
    yield Variable("NEURON_RT_EXEC_TIMEOUT", "600", "seconds; the default of 30 is too short for a first step")
    yield Variable("NEURON_NUM_RECENT_MODELS_TO_KEEP", "3", "graphs on the device; more fill its memory")
    yield Variable("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "50", "gradients are reduced in pieces of this size")
    yield Variable("MALLOC_ARENA_MAX", "64", "keeps the host's memory from growing with every thread")


def _native(processes: int, tp: bool) -> Iterator[Variable]:
    yield Variable("TORCH_NEURONX_NEFF_CACHE_DIR", str(compiled_folder()), "what was compiled once is kept")
    if tp and processes > 1:
        yield Variable("TORCH_NEURONX_ENABLE_HOST_CC", "1", "tensor-parallel collectives hang without it")


def _network() -> Iterator[Variable]:
    why = "Amazon's adapter between machines"
    yield Variable("FI_PROVIDER", "efa", why)
    yield Variable("FI_EFA_USE_DEVICE_RDMA", "1", f"{why} reads the devices' memory itself")
    yield Variable("FI_EFA_FORK_SAFE", "1", f"{why} stands processes that fork")


def prepare(train: Train, processes: int, tp: bool = False) -> None:
    """Set the variables of the run that this process is, or is about to start; those that are set stay as they are."""
    me = worker()
    several = me is not None and me.world_size > me.local_world_size
    added = add(os.environ, variables(train, me.world_size if me else processes, several, tp))
    if "MALLOC_ARENA_MAX" in added:
        _limit_arenas(int(added["MALLOC_ARENA_MAX"]))


def add(environment: MutableMapping[str, str], wanted: list[Variable]) -> dict[str, str]:
    """Set what ``environment`` does not say; return what was set."""
    added = {one.name: one.value for one in wanted if one.name not in environment}
    environment.update(added)
    return added


def _limit_arenas(count: int) -> None:
    """The same for this process, whose C library read the variable when it started."""
    import ctypes

    arena_max = -8  # M_ARENA_MAX of glibc's malloc.h
    try:
        ctypes.CDLL(None).mallopt(arena_max, count)
    except (AttributeError, OSError, TypeError):  # no glibc
        return
