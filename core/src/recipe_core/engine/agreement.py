"""Agreement of all ranks: actions that succeed or fail on all of them, and the comparison at the start of a run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

from recipe_core.engine.protocol import Ranks
from recipe_core.errors import ConfigError, DiskError, RecipeError
from recipe_core.files import aside, disk_error, is_full
from recipe_core.launch.cores import usable_cores
from recipe_core.launch.host import host
from recipe_core.launch.identity import Identity, differences, digest

T = TypeVar("T")
LIBRARIES = (
    "torch", "numpy", "triton", "torchao", "torch-xla", "libneuronxla", "torch-neuronx", "neuronx-cc",
    "neuronx-distributed", "transformers", "tokenizers", "accelerate", "recipe-index",
)  # fmt: skip
"""Distributions whose versions all ranks must have in common."""
VARIABLES = re.compile(
    r"ATEN_CPU_CAPABILITY|CUBLAS(LT)?_\w+|CUDNN_\w+|DNNL_\w+|MKL_(CBWR|ENABLE_INSTRUCTIONS)|NCCL_(ALGO|PROTO)|"
    r"NEURON_(CC_FLAGS|FUSE_SOFTMAX|RT_STOCHASTIC\w+)|NVIDIA_TF32_OVERRIDE|ONEDNN_\w+|RECIPE_PLUGINS|"
    r"TORCH_(ALLOW_TF32\w*|BLAS_PREFER\w*|COMPILE_DISABLE)|TORCHDYNAMO_DISABLE|XLA_(DOWNCAST_BF16|FLAGS|USE_BF16)"
)
"""Environment variables that change results, not only where or how fast they are computed."""
_CLOCKS = 5.0
"""Seconds that clocks may differ without a remark."""
_SHOWN = 10
"""Differences that a message lists; it counts the others."""
_SHOWS_WITHIN = 5.0
"""Seconds until a network file system shows files of another machine."""


def on_all_ranks(ranks: Ranks, action: Callable[[], T], where: Path) -> list[T]:
    """Run ``action`` on every rank and return all results (small, picklable) in rank order.

    No rank returns before all have finished: one that continued alone would wait in its next collective forever.

    Args:
        ranks: the ranks; all of them call this.
        action: runs on each rank.
        where: the path in messages of disk errors that name no file.

    Raises:
        RecipeError: the action failed on a rank. All ranks raise the error of the lowest rank that failed.
    """
    value: T | None = None
    failure: tuple[type[RecipeError], str] | None = None
    unexpected: Exception | None = None
    try:
        value = action()
    except RecipeError as error:
        failure = (type(error), str(error))
    except OSError as error:
        path = Path(error.filename or where)
        known = disk_error(error, path) if is_full(error) else DiskError(f"{path}: {error.strerror or error}")
        failure = (type(known), str(known))
    except Exception as error:  # a bug: this rank shows its traceback
        unexpected, failure = error, (RecipeError, f"{type(error).__name__}: {error}")
    outcomes = ranks.gather((value, failure))
    if unexpected is not None:
        raise unexpected
    failures = [(rank, failure) for rank, (_, failure) in enumerate(outcomes) if failure]
    if failures:
        rank, (kind, text) = failures[0]
        raise kind(text if rank == 0 else f"rank {rank}: {text}")
    return [cast("T", value) for value, _ in outcomes]


def on_rank_0(ranks: Ranks, action: Callable[[], T], where: Path) -> T:
    """Run ``action`` on rank 0 alone and return its result on all ranks; if it fails, all raise the same error."""
    return cast("T", on_all_ranks(ranks, lambda: action() if ranks.rank == 0 else None, where)[0])


def on_each_rank(ranks: Ranks, action: Callable[[], T], where: Path) -> T:
    """Run ``action`` on every rank and return this rank's own result, which need not be picklable."""
    results: list[T] = []
    on_all_ranks(ranks, lambda: results.append(action()), where)
    return results[0]


def agree(ranks: Ranks, identity: Identity, require_usable: Callable[[], None], out: Path) -> list[str]:
    """Compare this rank's ``identity`` with the other ranks', and check that all ranks see the same folder ``out``.

    It gathers some hundred bytes from each rank, then the clocks; more only if something differs.

    Args:
        ranks: the ranks; all of them call this.
        identity: see :func:`recipe_core.launch.identity.identity`.
        require_usable: raises if the run may not write into ``out``; rank 0 calls it.
        out: the run folder.

    Returns:
        Lines for the log: differences that are allowed.

    Raises:
        ConfigError: something else differs; the message names it, with ranks, machines and values.
    """
    if ranks.world_size == 1:
        return []
    marker = Marker(out)
    digests = {section: digest(facts) for section, facts in identity.items()}

    def show() -> tuple[dict[str, str], str, str]:
        name = ""
        if ranks.rank == 0:
            require_usable()
            name = marker.set()
        return digests, name, host()

    try:
        shown = on_all_ranks(ranks, show, out)
        hosts = [name for _, _, name in shown]
        differing = [section for section in identity if len({rank.get(section) for rank, _, _ in shown}) > 1]
        if differing:
            facts = ranks.gather({name: value for section in differing for name, value in identity[section].items()})
            _refuse(differences(facts, hosts))
        clocks, seen, threads = zip(*ranks.gather((_now(), marker.seen(shown[0][1]), _threads())), strict=True)
    finally:
        marker.remove()
    if not all(seen):
        lines = differences([{"--out": "there" if sees else "not there"} for sees in seen], hosts)
        raise ConfigError(
            f"{out}: not all ranks see what rank 0 writes into it ({lines[0]}); give an --out on a file system that "
            "all machines share"
        )
    remarks = [
        f"{line}; on CPUs, other numbers of threads add in another order, and the last bits of a loss differ"
        for line in differences([{"OMP_NUM_THREADS": count} for count in threads], hosts)
    ]
    return remarks + clock_remarks(hosts, clocks)


def clock_remarks(hosts: Sequence[str], clocks: Sequence[float]) -> list[str]:
    """A sentence about the two clocks (in seconds) that differ most, if they differ too much; else empty."""
    early, late = min(range(len(clocks)), key=clocks.__getitem__), max(range(len(clocks)), key=clocks.__getitem__)
    if (apart := clocks[late] - clocks[early]) <= _CLOCKS:
        return []
    return [
        f"the clocks of {hosts[early]} and {hosts[late]} are {apart:,.0f} seconds apart; times in their logs cannot be "
        "compared"
    ]


def _threads() -> str:
    # Of an operator on the CPU, as far as it is known without torch.
    return os.environ.get("OMP_NUM_THREADS") or str(usable_cores())


def _now() -> float:
    return time.time()


def _refuse(lines: list[str]) -> None:
    shown = [f"  - {line}" for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"  - and {len(lines) - _SHOWN:,} more")
    raise ConfigError(
        "\n".join(
            [
                "the ranks do not agree, and nothing was computed:",
                *shown,
                "Start all of them with the same line, packages and data",
            ]
        )
    )


class Marker:
    """A file that rank 0 writes into a run folder and every rank looks for."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._made: list[Path] = []

    def set(self) -> str:
        """Write it, and the folder if it is missing; return its name."""
        missing = [folder for folder in (self._out, *self._out.parents) if not folder.exists()]
        self._out.mkdir(parents=True, exist_ok=True)
        self._made += missing
        path = aside(self._out / "agreement")
        path.touch()
        self._made.insert(0, path)
        return path.name

    def seen(self, name: str) -> bool:
        """True if this rank sees the file ``name``; waits some seconds for a network file system."""
        deadline = time.monotonic() + _SHOWS_WITHIN
        while not (self._out / name).exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
            with suppress(OSError):
                os.listdir(self._out)  # noqa: PTH208  # has the client ask its server again
        return True

    def remove(self) -> None:
        """Remove the file, and folders that it created if they are empty."""
        for path in self._made:
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
