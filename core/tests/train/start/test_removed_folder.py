"""A run folder that is removed or replaced while a run trains in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recipe_core.errors import DiskError
from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.train.metrics import results
from recipe_core.train.run import run
from recipe_core.train.start.folder import open_run_folder, require_saved

PROGRAM = """import sys
from pathlib import Path
from recipe_core.settings.job import resolve
from recipe_core.train.run import run
from recipe_core.testing import toy
words = ["train.steps=1000000", "train.schedule=constant", "train.eval_every=0", *sys.argv[2:]]
print(run(resolve(toy.registry(), "toy", words), Path(sys.argv[1])))
"""


def begun(out: Path, printed: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a run of many steps."""
    with printed.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(out), *words], stdout=file, stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def wait_for(process: subprocess.Popen[bytes], text: bytes, file: Path) -> None:
    deadline = time.monotonic() + 60
    while text not in file.read_bytes():
        assert process.poll() is None, file.read_text()
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.01)


def removed(out: Path) -> None:
    """Remove the folder while the run writes into it."""
    hidden = out.with_name("removed")
    out.rename(hidden)
    shutil.rmtree(hidden)


@pytest.mark.slow
def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """The checkpoints that the run then saves can be continued, with the weights that it had."""
    out, printed = tmp_path / "run", tmp_path / "printed"
    process = begun(out, printed)
    try:
        wait_for(process, b" 20/1000000 ", printed)
        removed(out)
        wait_for(process, b"metrics.jsonl was removed or replaced", printed)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, printed.read_text()
    finally:
        process.kill()
        process.wait()
    text = printed.read_text()
    assert text.count(f"warning: {out} was removed while the run trained in it: the checkpoints and metrics until") == 1
    step = json.loads((out / "results.json").read_text())["step"]
    assert {"job.yaml", "metrics.jsonl", "results.json", "checkpoints", "launch"} <= set(os.listdir(out))  # noqa: PTH208
    again = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(out), "train.stop_after=2"], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert f"continuing after step {step:,}" in again.stdout
    assert json.loads((out / "results.json").read_text())["step"] == step + 2


@pytest.mark.slow
def test_a_folder_of_another_run_is_let_alone(tmp_path: Path) -> None:
    out, printed = tmp_path / "run", tmp_path / "printed"
    first, second = begun(out, printed, "train.save_every=1000000"), None
    try:
        wait_for(first, b" 20/1000000 ", printed)
        first.send_signal(signal.SIGSTOP)  # for it would write its metrics between the two
        removed(out)
        second = begun(out, tmp_path / "second")
        wait_for(second, b" 20/1000000 ", tmp_path / "second")
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
        held = (out / "job.yaml").stat().st_mtime_ns, sorted(os.listdir(out / "checkpoints"))  # noqa: PTH208
        first.send_signal(signal.SIGCONT)
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 1
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait()
    assert f"DiskError: {out}/checkpoints/step-" in printed.read_text()
    assert f"{out} was replaced while the run trained in it, and another run may train there now" in printed.read_text()
    assert held == ((out / "job.yaml").stat().st_mtime_ns, sorted(os.listdir(out / "checkpoints")))  # noqa: PTH208


class Alone:
    """An engine of one rank."""

    rank, world_size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]


def test_a_lost_job_yaml_comes_back(tmp_path: Path) -> None:
    job = resolve(toy.registry(), "toy", [])
    with open_run_folder(tmp_path / "run", job, Alone()) as run_folder:  # type: ignore[arg-type]
        text = (tmp_path / "run" / "job.yaml").read_text()
        run_folder.restore()
        (tmp_path / "run" / "job.yaml").unlink()
        run_folder.restore()
        assert (tmp_path / "run" / "job.yaml").read_text() == text


def test_a_checkpoint_that_is_gone_at_the_end_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    require_saved(out, 0)  # nothing was trained
    monkeypatch.setattr("recipe_core.train.run.measured", lambda rows: (removed(out), results.measured(rows))[1])
    with pytest.raises(
        DiskError, match=r"checkpoints/step-2 was removed after the last step; give the same line again"
    ):
        run(resolve(toy.registry(), "toy", ["train.steps=2"]), out)
    with suppress(FileNotFoundError):
        assert "step-2" not in [path.name for path in (out / "checkpoints").iterdir()]


def test_rows_that_are_gone_at_the_end_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is closed by then: the closing words would name it."""
    out = tmp_path / "run"
    metrics = out / "metrics.jsonl"
    monkeypatch.setattr("recipe_core.train.run.measured", lambda rows: (results.measured(rows), metrics.unlink())[0])
    run(resolve(toy.registry(), "toy", ["train.steps=2"]), out)
    said = capsys.readouterr().err
    assert f"{metrics} was removed after its last row was written: the rows of this run are gone" in said
