"""A run that is stopped, killed or out of disk continues as if nothing had happened. Through the real command."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from recipe_core.testing import Finished, command, run_tiny
from recipe_core.train.metrics.curves import read_rows

RUN = ("train.steps=12", "train.log_every=1", "train.eval_every=0", "train.save_every=3", "model.dropout=0.1")


# `recipe WORDS`, whose ranks stay at a moment until the file `go` is there: each writes the file `at-N` before. The
# moment is the end of a step, by its number, or the first file of the checkpoint of step 6, written and not synced yet.
PROGRAM = """
import os, sys, time
from pathlib import Path
from recipe_core.cli.__main__ import main
from recipe_core.launch import supervisor
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.testing.forked_rank import ForkedRank

folder, moment = Path(sys.argv[1]), sys.argv[2]
end_step, fsync = beat.end_step, os.fsync

def stay():
    (folder / f"at-{os.environ.get('RANK', 0)}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)

def ending():
    end_step()
    if moment == str(beat.step):
        stay()

def syncing(file):
    path = os.readlink(f"/proc/self/fd/{file}")
    if moment == "save" and "/.step-6." in path and path.endswith(".distcp"):
        stay()
    fsync(file)

beat.end_step, os.fsync = ending, syncing
supervisor.Popen = ForkedRank
del sys.argv[1:3]
sys.exit(main())
"""


def losses(run: Finished) -> dict[int, float]:
    return run.column("loss")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of the uninterrupted run."""
    return losses(run_tiny("megatron_gpt", tmp_path_factory.mktemp("whole") / "run", *RUN))


def start(moment: str, out: Path, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a run whose ranks stay at ``moment``, with the files in the folder above ``out``."""
    run = ["run", "megatron_gpt:tiny", *RUN, *words, "--out", str(out)]
    line = [*before, sys.executable, "-c", PROGRAM, str(out.parent), moment, *run]
    return subprocess.Popen(
        line, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def until(condition: object, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started."""
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def alive(pid: int) -> bool:
    """False for a zombie, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_sigterm(tmp_path: Path, whole: dict[int, float]) -> None:
    out = tmp_path / "run"
    process = start("5", out)
    until((tmp_path / "at-0").exists, process)
    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert process.wait(120) == 75
    assert losses(run_tiny("megatron_gpt", out, *RUN)) == whole


@pytest.mark.parametrize("processes", [1, 2])
def test_a_terminal_that_is_closed(tmp_path: Path, processes: int) -> None:
    """The kernel sends SIGHUP, and nothing can be shown any more: not the rest of the progress bar, nor the summary."""
    out, (terminal, inside) = tmp_path / "run", pty.openpty()
    line = [sys.executable, "-m", "recipe_core.cli", "run", "megatron_gpt:tiny", *RUN, "train.steps=1000000"]
    process = subprocess.Popen(
        [*line, "--processes", str(processes), "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}, stdin=inside, stdout=inside, stderr=inside,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(inside)
    shown = b""

    def trains() -> bool:
        nonlocal shown
        if select.select([terminal], [], [], 0)[0]:
            shown += os.read(terminal, 65536)
        return len(read_rows(out / "metrics.jsonl")) >= 5

    until(trains, process)
    os.close(terminal)
    assert process.wait(120) == 75
    assert b"steps" in shown  # the bar was there
    results = json.loads((out / "results.json").read_text())
    assert results["stopped"] == "SIGHUP"
    assert (out / "checkpoints" / f"step-{results['step']}" / "checkpoint.json").is_file()


def test_nohup(tmp_path: Path, whole: dict[int, float]) -> None:
    out = tmp_path / "run"
    process = start("3", out, before=("nohup",))
    until((tmp_path / "at-0").exists, process)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert process.wait(120) == 0
    assert {row["step"]: row["loss"] for row in read_rows(out / "metrics.jsonl")} == whole


def test_a_reader_that_goes_away(tmp_path: Path, whole: dict[int, float]) -> None:
    """`recipe run ... | head -1` trains to the end."""
    out = tmp_path / "run"
    line = [sys.executable, "-m", "recipe_core.cli", "run", "megatron_gpt:tiny", *RUN, "--out", str(out)]
    process = subprocess.Popen(
        line, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline().startswith("megatron_gpt:tiny")
        process.stdout.close()
        assert (process.wait(120), process.stderr.read()) == (0, "")
    assert {row["step"]: row["loss"] for row in read_rows(out / "metrics.jsonl")} == whole


@pytest.mark.parametrize("processes", [1, 2])
def test_sigkill_in_the_middle_of_a_save(tmp_path: Path, whole: dict[int, float], processes: int) -> None:
    out = tmp_path / "run"
    process = start("save", out, "--processes", str(processes))
    until(lambda: all((tmp_path / f"at-{rank}").exists() for rank in range(processes)), process)
    assert any(any(path.iterdir()) for path in (out / "checkpoints").glob(".*.part"))
    assert (out / "checkpoints" / "step-3").is_dir()
    ranks = children(process.pid)
    assert len(ranks) == (processes if processes > 1 else 0)
    process.kill()
    process.wait(120)
    deadline = time.monotonic() + 120
    while any(map(alive, ranks)):  # those of a killed supervisor notice by themselves
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = losses(run_tiny("megatron_gpt", out, *RUN, "--processes", str(processes)))
    assert found == pytest.approx(whole, rel=0, abs=0 if processes == 1 else 1e-6)


def test_a_full_disk(tmp_path: Path, whole: dict[int, float]) -> None:
    """Files may grow to 1 MB, as if the disk ended there; a checkpoint of this model has 1.7 MB."""
    out = tmp_path / "run"
    run_tiny("megatron_gpt", out, *RUN, "train.stop_after=4")

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))

    line = [sys.executable, "-m", "recipe_core.cli", "run", "megatron_gpt:tiny", *RUN, "--out", str(out)]
    done = subprocess.run(
        line, env={**os.environ, "OMP_NUM_THREADS": "1"}, preexec_fn=small, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 74, done.stderr
    assert "Traceback" not in done.stderr
    assert str(out / "checkpoints") in done.stderr
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["step-3", "step-4"]
    assert losses(run_tiny("megatron_gpt", out, *RUN)) == whole


def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path: Path, whole: dict[int, float]) -> None:
    out = tmp_path / "run"
    run_tiny("megatron_gpt", out, *RUN, "train.stop_after=7")
    newest = out / "checkpoints" / "step-7"
    data = next(newest.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-100])
    again = run_tiny("megatron_gpt", out, *RUN)
    assert str(newest) in again.text
    assert "continuing after step 6" in again.text
    assert losses(again) == whole


@pytest.mark.parametrize("processes", [2, 4])
def test_the_number_of_processes_changes_nothing(tmp_path: Path, processes: int) -> None:
    """20 steps with dropout and evaluation: losses within 1e-6 of one process', and from there on one process."""
    words = ("train.steps=20", "train.log_every=1", "model.dropout=0.1", "model.attention_dropout=0.1")
    one = run_tiny("megatron_gpt", tmp_path / "one", *words)
    several = run_tiny(
        "megatron_gpt", tmp_path / "several", *words, "train.stop_after=10", "--processes", str(processes)
    )
    assert several.results["world_size"] == processes
    several = run_tiny("megatron_gpt", tmp_path / "several", *words)
    for key in ("loss", "val_loss"):
        assert several.column(key) == pytest.approx(one.column(key), rel=0, abs=1e-6)


def test_every_mistake_is_one_message(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = command("run", "megatron_gpt:tiny", "train.lr=fast", "model.hiden=3", "layuot=ddp", "--out", str(out))
    assert done.returncode == 2
    for text in ("train.lr: expected a number, got 'fast'", "did you mean 'hidden'?", "did you mean 'layout'?"):
        assert text in done.stdout
    assert "Traceback" not in done.stdout
    assert not out.exists()
