"""recipe status, logs and stop, for runs on this machine, on others, and without a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from recipe_core.errors import ExitCode
from recipe_core.launch.ending import Ending, record_ending
from recipe_core.launch.launchers.submitted import note
from recipe_core.launch.process import FILE, Process, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def out(typed: Typed) -> Path:
    """A run folder at step 3 of 8, with a checkpoint of step 2, and no process."""
    folder = Path("a run")
    (folder / "checkpoints" / "step-2").mkdir(parents=True)
    (folder / "job.yaml").write_text(typed("show", "toy")[1])
    rows = [{"step": step, "loss": 1.0 / step, "seconds": 2.0} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine, which ends by SIGTERM."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def write(out: Path, **changes: Any) -> Process:
    """Record this process, with changes, in a run folder."""
    process = replace(this_process(), **changes)
    (out / FILE).parent.mkdir(exist_ok=True)
    (out / FILE).write_text(json.dumps(asdict(process)))
    return process


def state(typed: Typed, out: Path) -> dict[str, Any]:
    code, text, errors = typed("status", str(out), "--json")
    assert (code, errors) == (0, "")
    facts: dict[str, Any] = json.loads(text)
    return facts


def test_a_run_that_trains_is_told_with_step_time_left_and_losses(typed: Typed, out: Path) -> None:
    write(out)
    code, text, _ = typed("status", str(out))
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith(f"a run: running: process {os.getpid()} on ")
    assert lines[1:6] == [
        "  step       3 of 8; saved: 2",
        "  time left  10 s at 2 s a step",
        "  at 1       loss 1.0000",
        "  at 2       loss 0.5000",
        "  at 3       loss 0.3333",
    ]


@pytest.mark.parametrize(
    ("process", "results", "expected"),
    [
        (None, None, ("new", None)),
        ({"started": "1"}, None, ("killed", None)),  # another process has its number now
        ({"boot": "another"}, None, ("killed", None)),
        ({"started": "1"}, {"step": 8, "steps": 8}, ("finished", 0)),
        ({}, {"step": 8, "steps": 8}, ("running", None)),  # it closes
        ({"host": "node7"}, {"step": 8, "steps": 8}, ("finished", 0)),
        ({"started": "1"}, {"step": 3, "steps": 8, "exit_code": 0}, ("stopped", 0)),  # train.stop_after
        ({"started": "1"}, {"step": 3, "steps": 8, "stopped": "SIGTERM", "exit_code": 75}, ("stopped", 75)),
        ({"ended": 5.0, "exit_code": 75, "reason": "lost"}, None, ("stopped", 75)),
        ({"ended": 5.0, "exit_code": 65, "reason": "not finite"}, {"step": 8, "steps": 8}, ("failed", 65)),
        (
            {"started": "1", "began": time.time() + 1e6},
            {"step": 8, "steps": 8},
            ("killed", None),
        ),  # an older run's results
    ],
)
def test_how_a_run_ended_follows_from_its_notes(
    typed: Typed, out: Path, process: dict[str, Any] | None, results: dict[str, Any] | None, expected: tuple[str, int]
) -> None:
    if process is not None:
        write(out, **{"began": 1.0, **process})
    if results is not None:
        (out / "results.json").write_text(json.dumps(results))
    facts = state(typed, out)
    assert (facts["state"], facts["exit_code"]) == expected


def test_damaged_notes_are_as_none(typed: Typed, out: Path) -> None:
    (out / "launch").mkdir()
    for text in ("", "[]", '{"host": 1}', "\0"):
        (out / FILE).write_text(text)
        (out / "launch" / "submitted.json").write_text(text)
        assert state(typed, out)["state"] == "new"


def test_another_machines_run_is_not_known_from_here_and_not_stopped(typed: Typed, out: Path) -> None:
    write(out, host="node7")
    assert state(typed, out)["state"] == "unknown"
    code, _, errors = typed("stop", str(out))
    assert code == 2
    assert f"process {os.getpid()} on node7" in errors
    assert f"there: recipe stop '{out.absolute()}' (as in ssh node7 ...)" in errors


def test_another_machines_run_has_ended_where_one_of_its_ranks_says_so(typed: Typed, out: Path) -> None:
    write(out, host="node7", began=1.0)
    beat = {"rank": 1, "host": "node8", "time": 2.0, "ended": {"code": 69, "text": "hangs", "message": "hangs"}}
    (out / "logs").mkdir(exist_ok=True)
    (out / "logs" / "rank-1.beat.json").write_text(json.dumps(beat))
    facts = state(typed, out)
    assert (facts["state"], facts["exit_code"], facts["detail"]) == ("failed", 69, "hung: rank 1 on node8: hangs")
    assert facts["ending"]["again"] is True
    assert "  go on with recipe run 'a run'/job.yaml --out 'a run'" in typed("status", str(out))[1].splitlines()


def test_a_job_is_asked_of_the_batch_system(typed: Typed, out: Path, slurm: Path) -> None:
    note(out / "launch", "slurm", "12")
    for answer, expected in (("PENDING", "waiting"), ("RUNNING", "starting"), ("FAILED", "new")):
        (slurm / "state").write_text(f"{answer}\n")
        assert state(typed, out)["state"] == expected
    write(out, host="node7", job_id="12")
    for answer, expected in (("RUNNING", "running"), ("COMPLETED", "killed"), ("PENDING", "waiting")):
        (slurm / "state").write_text(f"{answer}\n")
        assert state(typed, out)["state"] == expected


def test_a_job_that_ended_before_a_process_trained(typed: Typed, out: Path, slurm: Path) -> None:
    note(out / "launch", "slurm", "12")
    (slurm / "state").write_text("FAILED\n")
    assert "job 12 of slurm has ended: `recipe logs" in state(typed, out)["detail"]
    record_ending(out, Ending(kind="mistake", exit_code=2, message="n2: no data\nmore", time=time.time()))
    now = state(typed, out)
    assert (now["state"], now["exit_code"], now["detail"]) == ("failed", 2, "mistake: n2: no data")
    time.sleep(0.01)
    note(out / "launch", "slurm", "13")  # submitted again: that was another job's end
    assert state(typed, out)["state"] == "new"


def test_stop_signals_the_ranks_of_a_job_and_cancels_one_that_waits(typed: Typed, out: Path, slurm: Path) -> None:
    note(out / "launch", "slurm", "12")
    write(out, host="node7", job_id="12")
    (slurm / "state").write_text("RUNNING\n")
    assert typed("stop", str(out), "--wait", "0")[:2] == (0, "a run: asked to stop\n")
    assert "scancel --signal=USR1 12\n" in (slurm / "lines").read_text()
    assert (out / "launch" / "stop-12").exists()  # the script must not start it again
    (out / FILE).unlink()
    (slurm / "state").write_text("PENDING\n")
    assert typed("stop", str(out), "--wait", "0")[0] == 0
    assert (slurm / "lines").read_text().splitlines()[-1] == "scancel 12"


def test_one_run_of_an_array_is_a_task_of_its_own(typed: Typed, out: Path, slurm: Path) -> None:
    for number in range(2):
        shutil.copytree(out, Path("array") / f"seed-{number}")
    note(Path("array/launch"), "slurm", "12")
    assert [state(typed, Path(f"array/seed-{number}"))["job"]["job_id"] for number in range(2)] == ["12_0", "12_1"]
    assert typed("stop", "array/seed-1", "--wait", "0")[0] == 0
    assert (slurm / "lines").read_text().splitlines()[-1] == "scancel 12_1"
    assert [path.name for path in Path("array/seed-1/launch").iterdir()] == ["stop-12_1"]
    assert "--jobs=12_1" in (slurm / "lines").read_text()
    assert not Path("array/seed-0/launch").exists()


def test_stop_signals_a_process_of_this_machine_and_no_other(
    typed: Typed, out: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    other = write(out, pid=sleeper.pid, started="1")  # the number was given to another process since
    assert typed("stop", str(out))[1].startswith("a run does not run: it is killed")
    assert sleeper.poll() is None
    from recipe_core.launch.process import started

    (out / FILE).write_text(json.dumps(asdict(replace(other, started=started(sleeper.pid)))))
    assert typed("stop", str(out), "--wait", "0")[0] == 0
    assert sleeper.wait(10) == -signal.SIGTERM


def test_stop_waits_no_longer_than_it_was_told(typed: Typed, out: Path) -> None:
    process = subprocess.Popen(
        ["bash", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        from recipe_core.launch.process import started

        write(out, pid=process.pid, started=started(process.pid))
        code, _, errors = typed("stop", str(out), "--wait", "1")
        assert code == 2
        assert "asked to stop, and process" in errors
        assert "has not ended in time" in errors
    finally:
        process.kill()
        process.communicate()


def test_what_is_no_run_folder_is_named(typed: Typed) -> None:
    Path("empty").mkdir()
    for arguments in (("status", "empty"), ("logs", "empty"), ("stop", "empty"), ("status", "--step", "empty")):
        code, _, errors = typed(*arguments)
        assert code == 2
        assert "empty: expected a run folder, and there is no job.yaml in it" in errors
    assert "there is no such folder" in typed("status", "none")[2]


def test_logs_are_of_the_rank_that_is_asked_for(typed: Typed, out: Path) -> None:
    assert "there is no log of rank 0" in typed("logs", str(out))[2]
    logs = out / "logs"
    logs.mkdir()
    (logs / "slurm-12.log").write_text("setup failed\n")
    assert typed("logs", str(out))[1] == "setup failed\n"
    (logs / "rank-0.log").write_text("one\ntwo\nthree\n")
    (logs / "rank-1.log").write_text("other\n")
    (logs / "rank-10.log").write_text("tenth\n")
    assert typed("logs", str(out))[1] == "one\ntwo\nthree\n"
    assert typed("logs", str(out), "--lines", "2")[1] == "two\nthree\n"
    assert typed("logs", str(out), "--rank", "1")[1] == "other\n"
    assert typed("logs", str(out), "--rank", "10")[1] == "tenth\n"
    assert typed("logs", str(out), "--rank", "2")[0] == 2
    os.utime(logs / "rank-0.log", (1, 1))
    (logs / "slurm-13.log").write_text("newer\n")
    assert typed("logs", str(out))[1] == "newer\n"


def recipe(*arguments: str) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "recipe_core.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_of_this_machine_is_followed_and_stopped(typed: Typed, processes: int) -> None:
    arguments = ("train.steps=1000000", "train.log_every=1", "--processes", str(processes), "--out", "long")
    run = recipe("run", "toy", *arguments)
    try:
        deadline = time.monotonic() + 120
        while not Path("long/metrics.jsonl").exists() or len(Path("long/metrics.jsonl").read_text().splitlines()) < 5:
            assert time.monotonic() < deadline
            assert run.poll() is None, run.communicate()[0]
            time.sleep(0.1)
        facts = state(typed, Path("long"))
        assert (facts["state"], facts["process"]["world_size"]) == ("running", processes)
        assert facts["process"]["launcher"] == ("recipe" if processes > 1 else "")
        follower = recipe("logs", "-f", "long") if processes > 1 else None
        code, text, errors = typed("stop", "long", "--wait", "60")
        assert (code, errors) == (0, "")
        assert text.startswith("long: stopped")
        run.communicate(timeout=60)
        facts = state(typed, Path("long"))
        assert facts["saved_step"] == facts["step"] > 0
        assert facts["exit_code"] in (0, ExitCode.STOPPED)
        assert typed("status", "long", "--again") == (0, "stopped: SIGTERM\n", "")
        if follower is not None:  # which ends by itself
            assert "stopped at step" in follower.communicate(timeout=60)[0]
    finally:
        run.kill()
        run.communicate()


def test_a_run_that_was_killed_is_known_as_killed(typed: Typed) -> None:
    run = recipe("run", "toy", "train.steps=1000000", "--out", "long")
    try:
        deadline = time.monotonic() + 120
        while not Path("long/metrics.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        run.kill()
        run.communicate()
    assert state(typed, Path("long"))["state"] == "killed"
    text = typed("status", "long")[1]
    assert "ended without a word" in text
    assert "go on with recipe run long/job.yaml --out long" in text


def test_a_run_that_failed_tells_its_reason(typed: Typed) -> None:
    assert typed("run", "toy", "model.poison_after=16", "--out", "bad")[0] == ExitCode.DIVERGED
    note = json.loads((Path("bad") / FILE).read_text())
    facts = state(typed, Path("bad"))
    assert (facts["state"], note["pid"]) == ("failed", os.getpid())
    assert facts["exit_code"] == ExitCode.DIVERGED
    assert "not finite" in facts["detail"]


@pytest.mark.parametrize("damage", ["[" * 100_000, '{"pid": 1}', "pipe", "device", "began", "host", "reason"])
def test_a_note_that_is_damaged_is_none(typed: Typed, out: Path, damage: str) -> None:
    """Nested too deeply, of wrong types, not finite, or no file: as if there were none."""
    write(out)
    path = out / FILE
    wrong = {"began": float("inf"), "host": 7, "reason": None}
    if damage in wrong:
        path.write_text(json.dumps({**json.loads(path.read_text()), damage: wrong[damage]}))
    elif damage in ("pipe", "device"):
        path.unlink()
        os.mkfifo(path) if damage == "pipe" else path.symlink_to("/dev/zero")
    else:
        path.write_text(damage)
    damaged = state(typed, out)
    path.unlink()
    assert damaged == state(typed, out)
