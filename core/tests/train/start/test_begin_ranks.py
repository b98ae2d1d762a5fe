"""Several ranks begin with one and the same checkpoint, also where the newest is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.checkpoint.locate import StoredCheckpoint
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.run import run
from recipe_core.train.start.resume import TrainingProgress


def job(*words: str) -> Job:
    return resolve(toy.registry(), "toy:tiny", words)


def opened(out: str, *words: str) -> list[str]:
    """On every rank: the names of the checkpoints that it reads when it begins."""
    seen: list[str] = []
    load = StoredCheckpoint.open

    def note(source: StoredCheckpoint, **how: bool) -> dict[str, object]:
        seen.append(source.path.name)
        return load(source, **how)

    StoredCheckpoint.open = note  # type: ignore[method-assign, assignment]
    run(job(*words), Path(out))
    return seen


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A run whose newest checkpoint has other bytes than were written, in files of the right size."""
    run(job("train.save_every=2"), tmp_path / "run")
    with (tmp_path / "run" / "checkpoints" / "step-4" / "__0_0.distcp").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff\xff")
    return tmp_path / "run"


def test_the_weights_of_a_run(tmp_path: Path, damaged: Path) -> None:
    assert spawn(opened, 2, str(tmp_path / "new"), f"train.init_from={damaged}") == [["step-2"]] * 2


@pytest.mark.slow
def test_going_on_from_a_run(tmp_path: Path, damaged: Path) -> None:
    """In the format of the checkpoint, which every rank loads by itself, and in another, where it is opened."""
    for form in ("dcp", "single"):
        words = (f"train.resume={damaged}", f"checkpoint={form}", "train.steps=8")
        assert spawn(continued, 2, str(tmp_path / form), *words) == [[3, 8]] * 2


def continued(out: str, *words: str) -> list[int]:
    """On every rank: the first and the last step that it takes."""
    steps: list[int] = []
    advance = TrainingProgress.advance

    def note(progress: TrainingProgress, samples: int) -> None:
        advance(progress, samples)
        steps.append(progress.step)

    TrainingProgress.advance = note  # type: ignore[method-assign]
    run(job(*words), Path(out))
    return [steps[0], steps[-1]]
