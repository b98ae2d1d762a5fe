"""Checkpoints are whole or not there, and the newest whole one is found."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.ranks.files import Grid
from recipe_core.checkpoint.ranks.optimizer import indexed_state, scheduler_state_dict
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.data.digest import verify_digest, with_digest
from recipe_core.errors import CheckpointError, DiskError, PluginError, RecipeError
from recipe_core.files import digest
from recipe_core.hooks.train import Train

T = TypeVar("T")


class Alone:
    """An engine of one rank."""

    rank = 0
    world_size = 1

    def gather(self, value: T) -> list[T]:
        return [value]


def state(number: float) -> dict[str, Any]:
    return {"model": {"weight": torch.full((100, 10), float(number))}, "progress": {"step": int(number)}}


def checkpoints(folder: Path, keep: int = 0, format: Any = None) -> tuple[Checkpoints, list[str]]:
    """The checkpoints of ``folder``, and the warnings that they give."""
    warnings: list[str] = []
    return Checkpoints(folder / "checkpoints", format or Dcp(), Alone(), keep, warnings.append), warnings


def listing(folder: Path) -> list[str]:
    """Names of everything among the checkpoints, hidden files too."""
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def loaded(found: Checkpoints, path: Path) -> int:
    """The step that a checkpoint holds; its tensor says the same."""
    target = state(0)
    found.load(path, target)
    step: int = target["progress"]["step"]
    assert target["model"]["weight"].eq(step).all()
    return step


# Saving


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    found, warnings = checkpoints(tmp_path)
    assert found.newest() is None
    assert warnings == []
    assert list(tmp_path.iterdir()) == []


def test_newest_is_the_highest_step(tmp_path: Path) -> None:
    found, warnings = checkpoints(tmp_path)
    for step in (5, 100, 20):  # neither the order of saving nor that of the alphabet
        assert found.save(step, state(step)) == tmp_path / "checkpoints" / f"step-{step}"
    newest = found.newest()
    assert newest is not None
    assert newest.name == "step-100"
    assert loaded(found, newest) == 100
    assert listing(tmp_path) == ["step-100", "step-20", "step-5"]
    assert warnings == []


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    path = checkpoints(tmp_path)[0].save(7, state(7))
    manifest = json.loads((path / "checkpoint.json").read_text())
    assert {k: manifest[k] for k in ("format", "step", "world_size", "torch")} == {
        "format": "dcp", "step": 7, "world_size": 1, "torch": torch.__version__,
    }  # fmt: skip
    files = {p.name: {"size": p.stat().st_size, "sha256": digest(p)} for p in path.iterdir()}
    del files["checkpoint.json"]
    assert manifest["files"] == files
    assert len(files) == 2


@pytest.mark.parametrize(("keep", "left"), [(0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])])
def test_keep(tmp_path: Path, keep: int, left: list[int]) -> None:
    found, _ = checkpoints(tmp_path, keep)
    for step in (1, 2, 3, 4):
        found.save(step, state(step))
    assert listing(tmp_path) == [f"step-{n}" for n in left]


def test_a_step_that_exists_is_replaced(tmp_path: Path) -> None:
    found, _ = checkpoints(tmp_path)
    found.save(1, state(3))
    assert loaded(found, found.save(1, state(4))) == 4
    assert listing(tmp_path) == ["step-1"]


def test_what_a_killed_save_left_goes(tmp_path: Path) -> None:
    found, _ = checkpoints(tmp_path)
    path = found.save(1, state(1))
    (path.parent / ".step-2.0123456789ab.part").mkdir()
    (path.parent / ".step-2.0123456789ab.part" / "half").touch()
    path.rename(path.parent / ".step-1.0123456789ab.old")  # killed between the two renames that replace a step
    assert found.newest() == path
    assert loaded(found, path) == 1
    (path.parent / ".step-1.456789abcdef.old").mkdir()  # killed before it was removed
    found.save(2, state(2))
    assert listing(tmp_path) == ["step-1", "step-2"]


def test_what_the_user_has_put_among_the_checkpoints_stays(tmp_path: Path) -> None:
    found, warnings = checkpoints(tmp_path, keep=1)
    folder = tmp_path / "checkpoints"
    for name in ("step-0", "step-3", ".step-9.part", "step-best"):
        (folder / name).mkdir(parents=True)
        (folder / name / "mine").write_text(name)
    (folder / "step-1").symlink_to(tmp_path)
    (found.save(2, state(2)) / "notes.txt").write_text("mine")
    path = found.save(3, state(3))
    assert loaded(found, path) == 3
    (aside,) = (name for name in listing(tmp_path) if name.endswith(".kept"))
    assert re.fullmatch(r"step-3\.[0-9a-f]{12}\.kept", aside)
    found.save(4, state(4))
    assert listing(tmp_path) == sorted([".step-9.part", "step-0", "step-1", "step-2", aside, "step-4", "step-best"])
    mine = [folder / name / "mine" for name in ("step-0", aside, ".step-9.part", "step-best")]
    assert [file.read_text() for file in mine] == ["step-0", "step-3", ".step-9.part", "step-best"]
    assert (folder / "step-2" / "notes.txt").read_text() == "mine"
    told = sorted(re.findall(r"step-\d(?=: (?:stays|is called))", " ".join(warnings)))
    assert told == ["step-0", "step-1", "step-2", "step-3"]  # each once


def test_a_format_gets_the_context_of_the_run(tmp_path: Path) -> None:
    contexts: list[SaveContext] = []

    class Listening(Dcp):
        def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
            contexts.append(context)
            super().save(path, state, context)

    run = SaveContext(train=Train(lr=0.5))
    found = Checkpoints(tmp_path / "checkpoints", Listening(), Alone(), 0, context=run)
    found.save(1, state(1))
    found.save(2, state(2), writer=print)
    assert contexts == [run, SaveContext(train=Train(lr=0.5), writer=print)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        contexts[0].train = None  # type: ignore[misc]


def test_indexed_state_has_the_rate_of_the_run() -> None:
    """Of any schedule: of one that only the job knows too."""
    weight, states = torch.zeros(2, 2), {"weight": {"exp_avg": torch.zeros(2, 2)}}
    train = Train(lr=0.5, schedule="of a plugin")
    context = SaveContext(train=train, rate=lambda step: 0.125 * step)
    written = indexed_state(states, {"weight": weight}, context, 3, "a format")
    assert [group["lr"] for group in written["param_groups"]] == [0.375, 0.375]
    assert scheduler_state_dict(context, 3)["_last_lr"] == [0.375, 0.375]
    plain = SaveContext(train=Train(lr=0.5, schedule="constant"))
    assert scheduler_state_dict(plain, 3)["_last_lr"] == [0.5, 0.5]
    assert scheduler_state_dict(NO_RUN, 3) == {}
    with pytest.raises(CheckpointError, match="that of the schedule 'of a plugin' is not known here: install"):
        scheduler_state_dict(SaveContext(train=train), 3)


def test_a_format_of_rank_files_is_for_conversion(tmp_path: Path) -> None:
    class OneWay(Format):
        name = "one_way"

        def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
            """Do nothing."""

        def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
            return {}

        def detect(self, path: Path) -> bool:
            return True

    form = OneWay()
    assert (form.files(tmp_path), form.grid, form.background, form.strict_dtypes) == ([tmp_path], None, False, True)
    form.grid = Grid()
    with pytest.raises(CheckpointError, match="there: one_way is for conversion: recipe convert"):
        form.load(Path("there"), {})


class Broken(Dcp):
    """Writes something, and then fails with ``error``."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        (path / "half").write_bytes(bytes(1000))
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            DiskError,
            r"checkpoints: cannot be written \(No space left on device\); free some space or",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "x/y"), DiskError, "x/y: Permission denied"),
        (CheckpointError("odd"), CheckpointError, "odd"),
    ],
)
def test_a_failed_save_leaves_the_last_good_one(
    tmp_path: Path, error: Exception, kind: type[RecipeError], text: str
) -> None:
    checkpoints(tmp_path)[0].save(1, state(1))
    found, warnings = checkpoints(tmp_path, keep=1, format=Broken(error))
    with pytest.raises(kind, match=rf"step-2 \(0\.0 MB\) was not saved; older checkpoints are untouched\. .*{text}"):
        found.save(2, state(2))
    assert listing(tmp_path) == ["step-1"]
    assert loaded(found, found.newest() or tmp_path) == 1
    assert warnings == []


def test_a_mistake_in_a_format_names_it(tmp_path: Path) -> None:
    said = r"checkpoint format 'dcp': '.*:Broken.save' raised ZeroDivisionError: oops \(test_checkpoint.py, line \d+\)"
    with pytest.raises(PluginError, match=said):
        checkpoints(tmp_path, format=Broken(ZeroDivisionError("oops")))[0].save(2, state(2))
    assert listing(tmp_path) == []


def test_too_little_space_is_found_before_writing(tmp_path: Path) -> None:
    huge = {"a": torch.empty(1 << 50, device="meta")}
    with pytest.raises(DiskError, match=r"step-1 \(4,503,.* MB\) was not saved.*the checkpoint step-1 needs 4,503"):
        checkpoints(tmp_path)[0].save(1, huge)
    assert list(tmp_path.iterdir()) == []


# Damage


def flip(path: Path) -> None:
    """Change one bit in the middle of the data."""
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "__0_0.distcp").write_bytes(data)


def cut(path: Path) -> None:
    with (path / "__0_0.distcp").open("ab") as file:
        file.truncate(file.tell() - 1)


def other_step(path: Path) -> None:
    plain = verify_digest((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(with_digest({**plain, "step": 1})))


def entry_removed(path: Path) -> None:
    """An entry is taken out of the manifest, so that nothing speaks of its file, and the file is changed."""
    plain = json.loads((path / "checkpoint.json").read_text())
    del plain["files"]["__0_0.distcp"]
    (path / "checkpoint.json").write_text(json.dumps(plain))
    flip(path)


def digest_removed(path: Path) -> None:
    plain = json.loads((path / "checkpoint.json").read_text())
    del plain["sha256"]
    (path / "checkpoint.json").write_text(json.dumps(plain))


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (flip, r"__0_0\.distcp does not hold the bytes that were written \(SHA-256 differs\)"),
    (cut, r"__0_0\.distcp has [\d,]+ bytes instead of [\d,]+"),
    (lambda p: (p / "__0_0.distcp").unlink(), r"__0_0\.distcp is missing"),
    (lambda p: (p / ".metadata").unlink(), r"\.metadata is missing"),
    (lambda p: (p / "checkpoint.json").unlink(), r"no checkpoint\.json in it, so it was not written to its end"),
    (lambda p: (p / "checkpoint.json").write_text("{"), r"checkpoint\.json is damaged"),
    (lambda p: (p / "checkpoint.json").write_text("[]"), r"checkpoint\.json is damaged"),
    (lambda p: (p / "checkpoint.json").write_bytes(b"\xff"), r"checkpoint\.json is damaged"),
    (other_step, r"checkpoint\.json speaks of step 1"),
    (entry_removed, r"checkpoint\.json is damaged \(ValueError: its own digest differs"),
    (digest_removed, r"checkpoint\.json is damaged \(ValueError: a manifest of version 2 has a digest of itself"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: Callable[[Path], Any], text: str) -> None:
    found, warnings = checkpoints(tmp_path)
    found.save(1, state(1))
    damage(found.save(2, state(2)))
    newest = found.newest()
    assert newest == tmp_path / "checkpoints" / "step-1"
    assert loaded(found, newest) == 1
    (warning,) = warnings
    assert warning.startswith(f"{tmp_path}/checkpoints/step-2: ")
    assert warning.endswith("Passed over; going on from step-1")
    assert re.search(f": {text}", warning)


def test_a_file_that_nobody_wrote_here_stops_the_run(tmp_path: Path) -> None:
    """Passed over, step 2 would be replaced when it is reached again, and the file with it."""
    found, warnings = checkpoints(tmp_path)
    found.save(1, state(1))
    path = found.save(2, state(2))
    (path / ".DS_Store").touch()  # systems make such ones
    assert found.newest() == path
    (path / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"step-2: notes\.txt is not in the manifest \(move it out of the folder"):
        found.newest()
    assert (path / "notes.txt").exists()
    assert warnings == []


def test_a_manifest_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """It has no digest; it must name what is there all the same."""
    found, _ = checkpoints(tmp_path)
    path = found.save(1, state(1))
    plain = verify_digest((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(plain, indent=1))
    assert found.newest() == path
    entry_removed_from = {**plain, "files": {".metadata": plain["files"][".metadata"]}}
    (path / "checkpoint.json").write_text(json.dumps(entry_removed_from, indent=1))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is not in the manifest"):
        found.newest()
    (path / "checkpoint.json").write_text(json.dumps({**plain, "seal": 2}))
    with pytest.raises(CheckpointError, match="unknown entries: seal"):
        found.newest()


def test_warnings_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Checkpoints(tmp_path, Dcp(), Alone(), 0)
    found.save(1, state(1))
    flip(found.save(2, state(2)))
    found.newest()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"warning: {tmp_path}/step-2: __0_0.distcp does not hold")


def test_no_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    """To start from scratch without a word would waste the run."""
    found, warnings = checkpoints(tmp_path)
    flip(found.save(1, state(1)))
    cut(found.save(2, state(2)))
    with pytest.raises(CheckpointError) as error:
        found.newest()
    lines = str(error.value).splitlines()
    assert lines[0] == "no checkpoint of this run is whole:"
    assert ["step-2: " in lines[1], "step-1: " in lines[2]] == [True, True]
    assert "rm -r" in lines[3]
    assert warnings == []
    assert listing(tmp_path) == ["step-1", "step-2"]


def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(tmp_path: Path) -> None:
    found, _ = checkpoints(tmp_path)
    for step in (1, 2, 3, 9):
        found.save(step, state(step))
    flip(tmp_path / "checkpoints" / "step-3")
    flip(tmp_path / "checkpoints" / "step-9")
    found, _ = checkpoints(tmp_path, keep=2)
    assert found.newest() == tmp_path / "checkpoints" / "step-2"
    found.save(4, state(4))
    assert listing(tmp_path) == ["step-2", "step-4", "step-9"]
    found.save(9, state(9))
    assert listing(tmp_path) == ["step-4", "step-9"]
    assert loaded(found, found.newest() or tmp_path) == 9


def test_other_folders_are_let_be(tmp_path: Path) -> None:
    found, _ = checkpoints(tmp_path, keep=1)
    found.save(1, state(1))
    for name in ("step-007", "step-x", "best", "step-3.bak"):
        (tmp_path / "checkpoints" / name).mkdir()
    found.save(2, state(2))
    assert (found.newest() or tmp_path).name == "step-2"
    assert listing(tmp_path) == ["best", "step-007", "step-2", "step-3.bak", "step-x"]


def test_load_says_what_a_folder_is(tmp_path: Path) -> None:
    class Other(Dcp):
        name = "other"

        def detect(self, path: Path) -> bool:
            return False

    path = checkpoints(tmp_path)[0].save(1, state(1))
    other = checkpoints(tmp_path, format=Other())[0]
    with pytest.raises(CheckpointError, match="not a checkpoint of format other; it was written as dcp"):
        other.load(path, state(0))
    with pytest.raises(CheckpointError, match="nothing: there is no checkpoint of this name"):
        other.load(tmp_path / "nothing", state(0))
    with pytest.raises(CheckpointError, match="not a checkpoint of format dcp; it has no manifest"):
        checkpoints(tmp_path)[0].load(tmp_path, state(0))


# Killed while saving


class Halting(Dcp):
    """Blocks for ever at a point of the save, and reports it."""

    def __init__(self, point: str) -> None:
        self.point = point

    def save(self, path: Path, state: dict[str, Any], context: SaveContext = NO_RUN) -> None:
        if self.point == "middle":
            super().save(path, state, context)
            data = path / "__0_0.distcp"
            os.truncate(data, data.stat().st_size // 2)
            (path / ".metadata").unlink()
            halt()
        super().save(path, state, context)
        if self.point == "written":
            halt()


def halt() -> None:
    print("halted", flush=True)
    time.sleep(100)


def killed_child(folder: Path, point: str) -> None:
    """In a process of its own: save step 1, then halt within the save of step 2."""
    checkpoints(folder)[0].save(1, state(1))
    if point == "sealed":
        from recipe_core.checkpoint.saving import store as module

        module.sync = lambda path: halt()  # type: ignore[assignment,misc]
    checkpoints(folder, format=Halting(point))[0].save(2, state(2))


@pytest.mark.parametrize("point", ["middle", "written", "sealed"])
def test_killed_while_saving(tmp_path: Path, point: str) -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, str(tmp_path), point], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "halted\n"
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    (part,) = (p for p in (tmp_path / "checkpoints").iterdir() if p.suffix == ".part")
    assert sum(p.stat().st_size for p in part.iterdir()) > 0
    found, warnings = checkpoints(tmp_path)
    newest = found.newest()
    assert newest == tmp_path / "checkpoints" / "step-1"
    assert loaded(found, newest) == 1
    assert listing(tmp_path) == ["step-1"]
    assert warnings == []


if __name__ == "__main__":
    killed_child(Path(sys.argv[1]), sys.argv[2])
