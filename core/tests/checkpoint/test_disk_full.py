"""A disk that fills up while a checkpoint is written: the last good one stays, and the message says what happened."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.saving import store
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.engine import protocol as engines
from recipe_core.engine.protocol import Engine
from recipe_core.errors import DiskError
from recipe_core.hooks.train import Train
from recipe_core.testing import spawn

T = TypeVar("T")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tmpfs and RLIMIT_FSIZE as Linux has them")


class Alone:
    """An engine of one rank."""

    rank = 0
    world_size = 1

    def gather(self, value: T) -> list[T]:
        return [value]


def state(step: int) -> dict[str, Any]:
    """About 400 kB in two tensors of equal size, so that each of two ranks writes one."""
    return {"a": torch.full((50_000,), float(step)), "b": torch.full((50_000,), float(step)), "step": step}


def listing(found: Checkpoints) -> list[str]:
    """Names of everything among the checkpoints, hidden files too."""
    return sorted(p.name for p in found.folder.iterdir())


def loaded(found: Checkpoints, path: Path | None) -> int:
    """The step that a checkpoint holds; its tensors say the same."""
    assert path is not None
    found.load(path, target := state(0))
    assert target["a"].eq(target["step"]).all()
    assert target["b"].eq(target["step"]).all()
    step: int = target["step"]
    return step


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond ``size`` bytes: writing gives EFBIG, where a full disk gives ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 100, 2_000, 100_000, 350_000])
def test_files_that_cannot_grow(tmp_path: Path, size: int) -> None:
    found = Checkpoints(tmp_path / "checkpoints", Dcp(), Alone(), 1)
    found.save(1, state(1))
    with largest_file(size), pytest.raises(DiskError) as error:
        found.save(2, state(2))
    text = rf"{tmp_path}/checkpoints/step-2 (0.4 MB) was not saved; older checkpoints are untouched. "
    assert str(error.value).startswith(text)
    assert "cannot be written (File too large)" in str(error.value)
    assert listing(found) == ["step-1"]
    assert loaded(found, found.newest()) == 1
    assert loaded(found, found.save(2, state(2))) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    with mounted(tmp_path / "disk", 2) as folder:
        yield folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """One of 16 MB, for the metrics of some thousand steps."""
    with mounted(tmp_path / "disk", 16) as folder:
        yield folder


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    try:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, free: int) -> None:
    """Leave ``free`` bytes."""
    (folder / "filler").unlink(missing_ok=True)
    space = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(space.f_bavail * space.f_frsize - free))


def test_space_is_checked_before_writing(small_disk: Path) -> None:
    found = Checkpoints(small_disk / "checkpoints", Dcp(), Alone(), 1)
    found.save(1, state(1))
    fill(small_disk, 300_000)
    with pytest.raises(DiskError, match=r"the checkpoint step-2 needs 0\.4 MB and 0\.3 MB are free"):
        found.save(2, state(2))
    assert listing(found) == ["step-1"]


def test_a_disk_with_as_many_files_as_it_can_have(small_disk: Path) -> None:
    """Every number of inodes that are left: it is files that are to be removed, and not large ones."""
    found = Checkpoints(small_disk / "checkpoints", Dcp(), Alone(), 1)
    found.save(1, state(1))
    subprocess.run(["mount", "-o", "remount,nr_inodes=60", str(small_disk)], check=True)
    fillers = [small_disk / f"filler-{number}" for number in range(60)]
    with suppress(OSError):
        for path in fillers:
            path.touch()
    failed = 0
    for path in fillers[:10]:
        if message := attempt(found):
            failed += 1
            said = r"cannot be written \(No space left on device: no inodes are free, .*\); remove some files or choose"
            assert re.search(said, message)
            assert ".step-" not in message
            assert listing(found) == ["step-1"]
            assert loaded(found, found.newest()) == 1
        path.unlink()
    assert 3 < failed < 10
    assert loaded(found, found.newest()) == 2


def test_a_disk_that_fills_up_while_writing(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every amount of space, page by page around the end: data, metadata, manifest and folders each do not fit."""
    monkeypatch.setattr(store, "require_space", lambda *args: None)
    found = Checkpoints(small_disk / "checkpoints", Dcp(), Alone(), 1)
    found.save(1, state(1))
    failed = 0
    for pages in [0, 1, 2, 50, *range(95, 110)]:
        fill(small_disk, pages * 4096)
        if message := attempt(found):
            failed += 1
            assert "No space left on device" in message
            assert listing(found) == ["step-1"]
            assert loaded(found, found.newest()) == 1
    assert 4 < failed < 19
    assert listing(found) == ["step-2"]
    assert loaded(found, found.newest()) == 2


def attempt(found: Checkpoints) -> str:
    """Why step 2 could not be saved; empty when it was."""
    try:
        found.save(2, state(2))
    except DiskError as error:
        return str(error)
    return ""


def full_on_one_rank(engine: Engine, folder: Path, rank: int) -> tuple[str, list[str], int]:
    found = Checkpoints(folder / f"checkpoints-{rank}", Dcp(), engine, 1)
    found.save(1, state(1))
    with largest_file(10_000 if engine.rank == rank else resource.RLIM_INFINITY), pytest.raises(DiskError) as error:
        found.save(2, state(2))
    engine.barrier()
    return str(error.value), listing(found), loaded(found, found.newest())


def on_ranks(folder: Path) -> list[tuple[str, list[str], int]]:
    with engines.start(Train(device="cpu", timeout=300)) as engine:
        return [full_on_one_rank(engine, folder, rank) for rank in (0, 1)]


def test_full_on_one_of_two_ranks(tmp_path: Path) -> None:
    """Both ranks raise the same, none waits for the other."""
    one, two = spawn(on_ranks, 2, tmp_path)
    assert one == two
    for rank, (text, files, step) in enumerate(one):
        assert text.startswith(f"{tmp_path}/checkpoints-{rank}/step-2 (0.4 MB) was not saved")
        assert "cannot be written (File too large)" in text
        assert files == ["step-1"]
        assert step == 1


# It saves at its end alone, and by then there may be space again.
ENDLESS = """import sys
from pathlib import Path
from recipe_core.settings.job import resolve
from recipe_core.train.run import run
from recipe_core.testing import toy
words = ["train.steps=1000000", "train.schedule=constant", "train.eval_every=0"]
run(resolve(toy.registry(), "toy", words), Path(sys.argv[1]))
"""


def fill_up(folder: Path) -> None:
    """Leave nothing, while others write too."""
    with (folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def wait_for(process: subprocess.Popen[bytes], text: bytes, file: Path) -> None:
    deadline = time.monotonic() + 60
    while text not in file.read_bytes():
        assert process.poll() is None, file.read_text()
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.01)


def shown(file: Path) -> int:
    return file.read_bytes().count(b"/1000000  loss ")


def test_training_goes_on_while_the_disk_of_the_metrics_is_full(disk: Path, tmp_path: Path) -> None:
    out, printed = disk / "run", tmp_path / "printed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with printed.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, out], env=environment, stdout=file, stderr=file)
    try:
        wait_for(process, b" 20/1000000 ", printed)
        fill_up(disk)
        wait_for(process, b"TensorBoard events cannot be written since step ", printed)
        before, deadline = shown(printed), time.monotonic() + 60
        while shown(printed) < before + 200:
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < deadline, "it hangs"
            time.sleep(0.01)
        (disk / "filler").unlink()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, printed.read_text()
    finally:
        process.kill()
        process.wait()
    step = json.loads((out / "results.json").read_text())["step"]
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()] == list(
        range(1, step + 1)
    )
    text = printed.read_text()
    assert text.count("metrics.jsonl: rows cannot be written since step ") == 1
    assert "are lost" not in text


def test_a_signal_ends_a_run_whose_disk_stays_full(disk: Path, tmp_path: Path) -> None:
    """Its checkpoint does not fit, which is an error; the rows that are lost are named."""
    out, printed = disk / "run", tmp_path / "printed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with printed.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, out], env=environment, stdout=file, stderr=file)
    try:
        wait_for(process, b" 20/1000000 ", printed)
        fill_up(disk)
        for kind in (b"TensorBoard events", b"rows"):
            wait_for(process, kind + b" cannot be written since step ", printed)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    text = printed.read_text()
    assert re.search(r"checkpoints: the checkpoint step-\d+ needs .* MB and 0\.0 MB are free", text)
    assert re.search(r"metrics\.jsonl: the rows of .* are lost \(No space left on device\)", text)
    assert re.search(r"tfevents.*: the TensorBoard events of .* are lost \(No space left on device\)", text)
    assert all(json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines())
