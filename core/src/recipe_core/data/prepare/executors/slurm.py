"""The executor ``slurm``: parts as tasks of array jobs.

A task writes the exit code of its part into a file. One that Slurm no longer has, and that left no such file, is lost.
An array's indices are limited (``MaxArraySize``, by default 1001), so that each thousand parts is an array of its own:
part K has the index ``K % MaxArraySize``.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from threading import Event, Lock, Thread

from recipe_core.errors import ConfigError, LaunchError
from recipe_core.hooks.specs.executor import ExecutorRun, PartTask, Submit
from recipe_core.launch.launchers.slurm import Slurm, exports, queue_options, sbatch_line
from recipe_core.launch.launchers.slurm_commands import run_slurm

LOOK, ASK = 1.0, 15.0
"""Seconds between two looks at the files of exit codes, and between two questions to Slurm."""
LATE = 60.0
"""Seconds within which a network file system shows the file of a task that has ended."""
_ARRAY = 1001
"""Slurm's default of ``MaxArraySize``: one more than the largest index."""
_ENDED = ("COMPLETED", "COMPLETING", "FAILED", "")
"""States in which the file of an exit code may still appear; empty: Slurm has forgotten the task."""
_WITHOUT_CODE = ("BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
_NOTE = "jobs"
"""File with the ids of the jobs of a command."""
_OURS = re.compile(rf"{_NOTE}|\d+\.code|\d+-\d+\.out")
_ELSEWHERE = "start it on one, or make the parts with --on local"


@contextmanager
def slurm(config: Slurm, run: ExecutorRun) -> Iterator[Submit]:
    """Submit array jobs, and watch them.

    Raises:
        ConfigError: an address is named, or sbatch cannot take a path.
        LaunchError: sbatch is missing, or refuses a job; or jobs of an earlier command still wait or run.
    """
    if run.address:
        raise ConfigError(f"--on slurm:{run.address}: Slurm takes no address; its section in the site profile does")
    for path in (run.folder, Path.cwd()):
        if re.search(r"[\\\n\r]", str(path)):
            raise ConfigError(f"{path}: Slurm takes no path with a backslash or a line break; choose another folder")
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", run_slurm(["scontrol", "show", "config"], _ELSEWHERE))
    _refuse_earlier(run.folder / _NOTE)
    jobs = _Jobs(config, run, int(found[1]) if found else _ARRAY)
    watch = Thread(target=jobs.watch, name="slurm", daemon=True)
    watch.start()
    try:
        yield jobs.submit
    finally:
        jobs.end()
        watch.join()


def _refuse_earlier(note: Path) -> None:
    # A command that was killed could not cancel its jobs, which would make the same parts.
    jobs = set(note.read_text(encoding="ascii").split()) if note.exists() else set()
    states = (_states(jobs) or {}) if jobs else {}
    if alive := sorted({job for (job, _), state in states.items() if state not in (*_ENDED, *_WITHOUT_CODE)}):
        raise LaunchError(
            f"jobs of an earlier command for the same parts still wait or run; let them end, or end them: scancel "
            f"{' '.join(alive)}"
        )


@dataclass
class _Task:
    """A task of an array job."""

    code: Path
    """The file of its exit code."""
    output: Path
    """Output of Slurm about it, and of the setup."""
    future: Future[int]
    ended: float | None = None
    """When Slurm first said that it has ended."""


class _Jobs:
    """The array jobs of a preparation, and the tasks in them that have not ended."""

    def __init__(self, config: Slurm, run: ExecutorRun, array: int) -> None:
        self._config, self._run, self._array = config, run, max(2, array)
        self._lock, self._over = Lock(), Event()
        self._tasks: dict[tuple[str, int], _Task] = {}
        """By job and index."""
        self._failed: set[Path] = set()
        """Files of exit codes of the parts that did not end with 0."""

    def submit(self, tasks: Sequence[PartTask]) -> list[Future[int]]:
        groups = defaultdict[int, list[PartTask]](list)
        for task in tasks:
            groups[task.number // self._array].append(task)
        futures: dict[int, Future[int]] = {}
        for group, members in groups.items():
            running = {task.number % self._array: self._new(task) for task in members}
            script = _script(self._config, self._run, group, dict(zip(running, members, strict=True)), running)
            printed = run_slurm(["sbatch", "--parsable"], _ELSEWHERE, script)
            job = printed.strip().partition(";")[0]  # id;cluster
            with (self._run.folder / _NOTE).open("a", encoding="ascii") as note:
                note.write(f"{job}\n")
            with self._lock:
                self._tasks |= {(job, index): task for index, task in running.items()}
            futures |= {task.number: one.future for task, one in zip(members, running.values(), strict=True)}
        return [futures[task.number] for task in tasks]

    def _new(self, task: PartTask) -> _Task:
        code = self._run.folder / f"{task.number}.code"
        code.unlink(missing_ok=True)  # of an earlier start
        output = self._run.folder / f"{task.number // self._array}-{task.number % self._array}.out"
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        return _Task(code, output, future)

    def watch(self) -> None:
        """Set the results of tasks that end, until :meth:`end`."""
        asked = 0.0
        while not self._over.wait(LOOK):
            self._read_codes()
            if time.monotonic() - asked >= ASK and self._tasks:
                self._ask()
                asked = time.monotonic()

    def _read_codes(self) -> None:
        with suppress(OSError):
            next(self._run.folder.iterdir(), None)  # has a network file system look for new files
        with self._lock:
            waiting = [*self._tasks.items()]
        for key, task in waiting:
            try:
                code = int(task.code.read_text(encoding="ascii"))
            except (OSError, ValueError):  # not there yet, or not written yet
                continue
            self._forget(key, failed=code != 0)
            task.future.set_result(code)

    def _ask(self) -> None:
        with self._lock:
            waiting = dict(self._tasks)
        states = _states({job for job, _ in waiting})
        if states is None:
            return
        self._read_codes()  # what has ended meanwhile
        for key, task in waiting.items():
            state = states.get(key, "")
            if task.future.done() or state not in (*_ENDED, *_WITHOUT_CODE):
                continue
            task.ended = task.ended or time.monotonic()
            if state in _WITHOUT_CODE or time.monotonic() - task.ended > LATE:
                self._forget(key, failed=True)
                cancelled = state == "CANCELLED"
                task.future.set_exception(CancelledError() if cancelled else _lost(*key, state, task.output))

    def _forget(self, key: tuple[str, int], *, failed: bool) -> None:
        with self._lock:
            code = self._tasks.pop(key).code
            self._failed = self._failed | {code} if failed else self._failed - {code}

    def end(self) -> None:
        """Cancel the jobs whose tasks have not all ended; if all parts are made, delete the files about them."""
        self._over.set()
        with self._lock:
            jobs = sorted({job for job, _ in self._tasks})
        for file in [] if jobs or self._failed else [*self._run.folder.iterdir()]:
            if _OURS.fullmatch(file.name):
                file.unlink()
        if jobs:
            try:
                run_slurm(["scancel", *jobs], f"end them yourself: scancel {' '.join(jobs)}")
            except LaunchError as error:
                print(f"recipe prepare: jobs {' '.join(jobs)} may still run: {error}", file=sys.stderr)


def _states(jobs: set[str]) -> dict[tuple[str, int], str] | None:
    """Return the states of the tasks that Slurm knows, by job and index; None if it does not answer."""
    line = ["squeue", "--noheader", "--array", "--states=all", "--format=%F %K %T", f"--jobs={','.join(sorted(jobs))}"]
    try:
        rows = [row.split() for row in run_slurm(line, "").splitlines() if row.strip()]
    except LaunchError as error:
        return {} if "Invalid job id" in str(error) else None
    return {(job, int(index)): state for job, index, state in rows if index.isdecimal()}


def _lost(job: str, index: int, state: str, output: Path) -> LaunchError:
    said = ""
    with suppress(OSError):
        lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
        said = f": {[line for line in lines if line.strip()][-1]:.300}" if any(map(str.strip, lines)) else ""
    return LaunchError(f"Slurm's task {job}_{index} ended without an exit code, {state or 'unknown to Slurm'}{said}")


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as Slurm writes them: ``1-5,7``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _script(
    config: Slurm, run: ExecutorRun, group: int, tasks: Mapping[int, PartTask], files: Mapping[int, _Task]
) -> str:
    """Return the batch script of an array with ``tasks`` by index."""
    output = str(run.folder).replace("%", "%%")
    first = next(iter(tasks.values()))
    options = [
        f"--job-name={run.name}",
        f"--chdir={first.folder}",
        f"--output={output}/{group}-%a.out",
        "--open-mode=append",
        "--requeue",
        f"--array={_ranges([*tasks])}",
        f"--cpus-per-task={run.cpus}",
        *queue_options(config),
        *config.options,
    ]
    together = zip(*(task.arguments for task in tasks.values()), strict=False)
    common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, together)]
    own = [
        f"{index}) log={shlex.quote(str(task.log))} code={shlex.quote(str(files[index].code))} "
        f"part=({shlex.join(task.arguments[len(common) :])}) ;;"
        for index, task in tasks.items()
    ]
    lines = [
        "#!/bin/bash",
        *map(sbatch_line, options),
        "",
        run.setup.rstrip(),
        *exports(run.environment),
        f"recipe=({shlex.join((*(run.program or (sys.executable, '-m', 'recipe_core.cli')), *common))})",
        'case "$SLURM_ARRAY_TASK_ID" in',
        *own,
        "esac",
        '"${recipe[@]}" "${part[@]}" >> "$log" 2>&1',
        "ended=$?",
        'echo "$ended" > "$code"',
        'exit "$ended"',
    ]
    return "\n".join(lines) + "\n"
