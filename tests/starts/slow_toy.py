"""The toy of the core, with samples that take their time: a run to interrupt, and one rank of it to break.

It is the plugin of the runs, and what the tests do with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core import Dataset, Recipe, Train, Use, hookimpl
from recipe_core.testing.toy import ToyData, data_facts, register_models

if TYPE_CHECKING:
    import pytest

__all__ = [
    "FAULTS", "break_rank", "build_data", "curve", "data_facts", "install", "register_datasets", "register_models",
    "register_recipes",
]  # fmt: skip
PLACE = "SLOW_TOY_FAULT"
"""Environment variable: the file that names the fault which rank 1 is to have, once."""


@dataclass(frozen=True, kw_only=True)
class SlowData(ToyData):
    seconds: float = 0.0
    """Time that reading a micro batch takes."""


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(name="slow_data", build="slow_toy:build_data", facts="slow_toy:data_facts", config=SlowData)


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    yield Recipe(
        name="slow",
        summary="the toy, slowly",
        model=Use("toy_model"),
        data=Use("slow_data"),
        layout=Use("ddp"),
        train=Train(steps=60, global_batch=4, micro_batch=2, lr=0.05, log_every=1, save_every=10, keep=3, device="cpu"),
    )


def _raise() -> None:
    """At the end of the step, in code of the core: a plugin's own error would be a mistake, and not a bug."""
    from recipe_core.train.metrics.meter import Meter

    def broken(*_: Any) -> None:
        raise IndexError("no such step")

    Meter.step = broken  # type: ignore[method-assign, assignment]


FAULTS: dict[str, Callable[[], object]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exception": _raise,
    "hang": lambda: time.sleep(3600),
}


def build_data(config: SlowData, run: Any) -> Any:
    from recipe_core.testing.toy_parts import Vectors

    class Slow(Vectors):
        def read(self, split: str, start: int, count: int) -> Any:
            time.sleep(config.seconds)
            place = Path(os.environ.get(PLACE, ""))
            if run.rank == 1 and place.is_file():
                fault = FAULTS[place.read_text()]
                place.unlink()
                fault()
            return super().read(split, start, count)

    return Slow(config)


def install(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make this the only plugin of what is started: its metadata is put into ``folder``, as will be the fault."""
    from recipe_core.testing.packages import install_plugin

    install_plugin(folder / "packages", "slow_toy", "slow_toy")
    for place in (folder / "packages", Path(__file__).parent):
        patch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
    patch.setenv("RECIPE_PLUGINS", "slow_toy")
    patch.setenv(PLACE, str(folder / "fault"))


def break_rank(folder: Path, fault: str) -> None:
    """Have rank 1 do one of ``FAULTS`` at its next sample."""
    (folder / "part").write_text(fault)
    (folder / "part").rename(folder / "fault")


def curve(out: str | Path) -> list[tuple[int, float]]:
    """The loss of every step of a run."""
    rows = map(json.loads, (Path(out) / "metrics.jsonl").read_text().splitlines())
    return [(row["step"], row["loss"]) for row in rows]
