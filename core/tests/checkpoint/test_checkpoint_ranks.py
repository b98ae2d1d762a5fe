"""Ranks save, fail and resume together: each writes its part, and all see the same outcome."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import ProcessGroup

from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.engine import protocol as engines
from recipe_core.engine.protocol import Engine
from recipe_core.errors import RecipeError
from recipe_core.hooks.train import Train
from recipe_core.testing import spawn


class PerRank(Format):
    """A format without collectives: a file per rank. ``fails`` names the rank that cannot write."""

    name = "per_rank"

    def __init__(self, rank: int, fails: int | None = None) -> None:
        self.rank, self.fails = rank, fails

    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        (path / f"rank-{self.rank}").write_text(str(state["step"]))
        if self.rank == self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")

    def load(self, path: Path, state: dict[str, Any], group: ProcessGroup | None = None) -> None:
        state["step"] = int((path / f"rank-{self.rank}").read_text())

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        raise NotImplementedError

    def detect(self, path: Path) -> bool:
        return (path / "rank-0").is_file()


def outcomes(engine: Engine, folder: Path) -> Iterator[Any]:
    """Note this rank's view of saves, failures and damage."""
    warnings: list[str] = []

    def here(fails: int | None = None, where: str = "checkpoints") -> Checkpoints:
        return Checkpoints(folder / where, PerRank(engine.rank, fails), engine, 2, warnings.append)

    def error(action: Callable[[], Any]) -> tuple[str, str]:
        with pytest.raises(RecipeError) as found:
            action()
        return type(found.value).__name__, str(found.value).replace(str(folder), "")

    for step in (1, 2, 3):
        here().save(step, {"step": step})
    yield "saved", [p.name for p in sorted((folder / "checkpoints").iterdir())]
    engine.barrier()  # the next save makes a hidden folder there
    for rank in (0, 1):
        yield "full", error(lambda rank=rank: here(fails=rank).save(4, {"step": 4}))  # type: ignore[misc]
    yield "not shared", error(lambda: here(where=f"disk-of-{engine.rank}").save(1, {"step": 1}))
    yield "after", [p.name for p in sorted((folder / "checkpoints").iterdir())]
    if engine.rank == 1:
        (folder / "checkpoints" / "step-3" / "rank-0").write_text("9")
    engine.barrier()
    newest = here().newest()
    assert newest is not None
    target = {"step": 0}
    here().load(newest, target)
    yield "newest", newest.name, target, [w.replace(str(folder), "") for w in warnings]
    engine.barrier()
    if engine.rank == 0:
        (newest / "rank-1").unlink()
    engine.barrier()
    yield "none", error(lambda: here().newest())


def rank_in_checkpoints(folder: Path) -> list[Any]:
    with engines.start(Train(device="cpu", timeout=300)) as engine:
        return list(outcomes(engine, folder))


def test_two_ranks_agree(tmp_path: Path) -> None:
    (tmp_path / "disk-of-0").mkdir()
    (tmp_path / "disk-of-1").mkdir()
    one, two = spawn(rank_in_checkpoints, 2, tmp_path)
    assert one[0] == two[0] == ("saved", ["step-2", "step-3"])
    saved = "/checkpoints/step-4 (0.0 MB) was not saved; older checkpoints are untouched. "
    full = "/checkpoints: cannot be written (No space left on device); free some space or choose another folder"
    assert one[1] == two[1] == ("full", ("DiskFullError", saved + full))
    assert one[2] == two[2] == ("full", ("DiskFullError", saved + "rank 1: " + full))
    assert one[3][1][0] == two[3][1][0] == "CheckpointError"
    assert "rank 1: /disk-of-1: this rank does not see what rank 0 writes there" in one[3][1][1]
    assert one[4] == two[4] == ("after", ["step-2", "step-3"])
    warning = (
        "/checkpoints/step-3: rank-0 does not hold the bytes that were written (SHA-256 differs). "
        "Passed over; going on from step-2"
    )
    assert one[5] == ("newest", "step-2", {"step": 2}, [warning])
    assert two[5] == ("newest", "step-2", {"step": 2}, [])
    assert one[6] == two[6]
    assert one[6][1][0] == "CheckpointError"
    assert "step-2: rank-1 is missing" in one[6][1][1]
