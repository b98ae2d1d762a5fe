"""Environment variables for a run, set unless the user set them. Imports no torch.

Libraries read them when they are imported, and the C library when a process starts: they must be set before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.engine.machine.packages import package
from recipe_core.engine.machine.probe import compiles, on_cuda
from recipe_core.engine.neuron import stack
from recipe_core.engine.select import spec_of
from recipe_core.errors import ConfigError
from recipe_core.files import home
from recipe_core.hooks.target import call_list

if TYPE_CHECKING:
    from recipe_core.settings.job import Job

INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Variable:
    """An environment variable with its value for a run, and the reason."""

    name: str
    value: str
    why: str


def is_on(environment: Mapping[str, str], name: str) -> bool:
    """True if a variable is set, and not to a word for no (``0``, ``false``, ``off``)."""
    return environment.get(name, "").lower() not in _OFF


def compiled_folder() -> Path:
    """The default folder of compiled graphs that runs share."""
    return home() / "compiled"


def variables(job: Job, processes: int, several_machines: bool) -> list[Variable]:
    """The variables that the engine of ``job`` wants.

    Args:
        job: the run.
        processes: of the whole run.
        several_machines: True if some processes run on other machines.
    """
    spec = spec_of(job.engine)
    if not spec.environment:
        return []
    return call_list(spec.environment, f"engine {spec.name!r}", job, processes, several_machines)


def native_variables(job: Job, processes: int, several_machines: bool) -> Iterator[Variable]:
    """Variables for PyTorch's own devices; see :class:`recipe_core.hooks.specs.EngineSpec`."""
    kind = stack.at_hand(job.train.device, "native")
    if kind is not None:
        yield Variable(stack.CACHE, str(compiled_folder()), "what was compiled once is kept")
        if processes > 1 and "tp" in job.axes(processes):
            yield Variable(stack.HOST_COLLECTIVES, "1", "tensor-parallel collectives hang without it")
    if package("torch-xla"):
        yield Variable("USE_TORCH_XLA", "0", "or transformers takes the run for one on XLA")
    if job.train.compile and kind is None:
        yield Variable(INDUCTOR_CACHE, str(compiled_folder() / "inductor"), "what torch.compile made once is kept")
    if kind is not None and several_machines:
        yield from network()


def network() -> Iterator[Variable]:
    """Variables of Amazon's network adapter (EFA), for Trainium on several machines."""
    why = "Amazon's adapter between machines"
    yield Variable("FI_PROVIDER", "efa", why)
    yield Variable("FI_EFA_USE_DEVICE_RDMA", "1", f"{why} reads the devices' memory itself")
    yield Variable("FI_EFA_FORK_SAFE", "1", f"{why} stands processes that fork")


def prepare(job: Job, processes: int) -> None:
    """Set the variables of the run that this process is or will start; variables that are set keep their values."""
    from recipe_core.launch.worker import worker  # whose imports cost time that `recipe show` saves

    me = worker()
    several = me is not None and me.world_size > me.local_world_size
    added = add(os.environ, variables(job, me.world_size if me else processes, several))
    if "MALLOC_ARENA_MAX" in added:
        _limit_arenas(int(added["MALLOC_ARENA_MAX"]))


def native_precompile(job: Job, words: Sequence[str], out: Path | None, processes: int) -> int | None:
    """Refuse a run that compiles nothing, and set Neuron to compile only; see
    :class:`recipe_core.hooks.specs.EngineSpec`."""
    kind = stack.at_hand(job.train.device, "native")
    if kind is None and not _compiles(job):
        said = "null, which compiles large models on CUDA" if job.train.compile is None else "false"
        raise ConfigError(
            f"train.compile: {said}, and device {job.train.device} compiles nothing by itself; say train.compile=true"
        )
    if kind is not None:
        os.environ.setdefault(stack.COMPILE_ONLY, "1")
    return None


def _compiles(job: Job) -> bool:
    facts, device = job.model_facts(), job.train.device
    return compiles(job.train, facts.parameters if facts else 0, "cuda" if on_cuda(device) else device)


def add(environment: MutableMapping[str, str], wanted: list[Variable]) -> dict[str, str]:
    """Set the variables that are missing in ``environment``; return them."""
    added = {variable.name: variable.value for variable in wanted if variable.name not in environment}
    environment.update(added)
    return added


def _limit_arenas(count: int) -> None:
    # The C library of this process read the variable when it started.
    import ctypes

    arena_max = -8  # M_ARENA_MAX of glibc's malloc.h
    try:
        ctypes.CDLL(None).mallopt(arena_max, count)
    except (AttributeError, OSError, TypeError):  # no glibc
        return
