"""Submit the parts of a preparation, and those again that were lost, until each is complete or has failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from signal import SIGKILL
from typing import Any

from recipe_core.data.prepare.executors.parts_folder import PartsFolder
from recipe_core.data.prepare.executors.progress import PartsProgress
from recipe_core.data.prepare.part import PreparePart
from recipe_core.errors import ExitCode, PluginError, RecipeError
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs.executor import ExecutorRun, ExecutorSpec, PartTask, Submit
from recipe_core.hooks.target import as_plugin_error, load

ATTEMPTS = 4
"""Starts of a part, before it counts as failed."""
VISIBLE = 30.0
"""Seconds within which a network file system shows what another machine has made."""
ALIKE = 3
"""Parts that end with the same error, and none without, before the others are not made: a setting is wrong."""
_SHOWN = 10
"""Causes of failures that are listed; the others are counted."""


class PartsFailedError(RecipeError):
    """Parts have failed. Those that are complete are kept for the next run."""

    exit_code = ExitCode.FINDING


@contextmanager
def submitting(spec: ExecutorSpec, config: Any, run: ExecutorRun) -> Iterator[Submit]:
    """Start an executor, yield its ``submit``, and end the executor with all that it runs.

    Raises:
        RecipeError: the executor cannot be reached, or refuses the tasks.
        PluginError: it raises another error, or does not return what :class:`ExecutorSpec` says.
    """
    build = load(spec.build, f"executor {spec.name!r}")
    code = code_of(spec)
    blame = as_plugin_error(code)
    with ExitStack() as stack:
        with blame:
            submit = stack.enter_context(build(config, run))

        def checked(tasks: Sequence[PartTask]) -> Sequence[Future[int]]:
            with blame:
                futures = [*submit(tasks)]
            if len(futures) != len(tasks) or not all(isinstance(future, Future) for future in futures):
                raise PluginError(
                    f"{code}: submit returned {futures!r:.60} for {len(tasks)} tasks; expected a "
                    "concurrent.futures.Future for each"
                )
            return futures

        try:
            yield checked
        finally:
            with blame:
                stack.close()


def make_parts(folder: PartsFolder, tasks: Mapping[PreparePart, PartTask], submit: Submit, code: str) -> None:
    """Have an executor make parts, and show the progress.

    Args:
        folder: of the parts, held by this process.
        tasks: the parts to make.
        submit: of the executor.
        code: names the executor in messages.

    Raises:
        PartsFailedError: a part failed, or was lost too often.
        PluginError: a future of the executor does not hold an exit code.
    """
    files = {part.number: folder.progress(part) for part in tasks}
    for file in files.values():
        file.unlink(missing_ok=True)  # of an earlier run
    with PartsProgress(files, len(folder.parts) - len(tasks)) as progress:
        failures = _Schedule(folder, tasks, submit, code, progress).run()
    if failures:
        raise PartsFailedError(_report(folder, failures))


class _Schedule:
    """The parts that are not complete, and those that have ended."""

    def __init__(
        self, folder: PartsFolder, tasks: Mapping[PreparePart, PartTask], submit: Submit, code: str,
        progress: PartsProgress,
    ) -> None:  # fmt: skip
        self._folder, self._tasks, self._executor, self._code = folder, tasks, submit, code
        self._progress = progress
        self._ended: SimpleQueue[tuple[PreparePart, Future[int]]] = SimpleQueue()
        self._attempts: Counter[PreparePart] = Counter()
        self._done: list[PreparePart] = []
        self._failures: dict[PreparePart, str] = {}

    def run(self) -> dict[PreparePart, str]:
        """Wait for all parts; return the reasons of failures."""
        self._submit([*self._tasks])
        while len(self._done) + len(self._failures) < len(self._tasks) and not self._fail_alike():
            self._progress.show(len(self._done), len(self._failures))
            if lost := [part for part, future in self._newly_ended() if self._is_lost(part, future)]:
                self._submit(lost)
        self._progress.show(len(self._done), len(self._failures), last=True)
        return self._failures

    def _fail_alike(self) -> bool:
        causes = {_cause(self._folder, part, problem) for part, problem in self._failures.items()}
        return len(self._failures) >= ALIKE and len(causes) == 1 and not self._done

    def _submit(self, parts: Sequence[PreparePart]) -> None:
        self._attempts.update(parts)
        futures = self._executor([self._tasks[part] for part in parts])
        for part, future in zip(parts, futures, strict=True):
            future.add_done_callback(partial(self._note_end, part))

    def _note_end(self, part: PreparePart, future: Future[int]) -> None:
        self._ended.put((part, future))  # in a thread of the executor

    def _newly_ended(self) -> Iterator[tuple[PreparePart, Future[int]]]:
        try:
            yield self._ended.get(timeout=self._progress.every)
            while True:
                yield self._ended.get_nowait()
        except Empty:
            return

    def _is_lost(self, part: PreparePart, future: Future[int]) -> bool:
        """Note the end of a part; True if it has to be started again."""
        problem, again = self._problem(part, future)
        if not problem or self._folder.is_complete(part):  # it may have been killed after its last file
            self._done.append(part)
            for line in self._folder.warnings(part):
                self._progress.note(f"part {part}: {line}")
        elif again and self._attempts[part] < ATTEMPTS:
            attempt = f"start {self._attempts[part] + 1} of at most {ATTEMPTS}"
            self._progress.note(f"recipe prepare: part {part}: {problem}; it starts again ({attempt})")
            return True
        else:
            self._failures[part] = problem
            self._progress.note(f"recipe prepare: part {part}: {problem}")
        return False

    def _problem(self, part: PreparePart, future: Future[int]) -> tuple[str, bool]:
        """Return the reason why a part is not complete, and whether another start may help."""
        try:
            code = future.result()
        except CancelledError:
            return "cancelled", False
        except RecipeError as error:
            return str(error), True
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return f"lost: {type(error).__name__}: {first:.300}", True
        if isinstance(code, bool) or not isinstance(code, int):
            raise PluginError(f"{self._code}: the result of a future is {code!r:.60}; expected an exit code")
        signal = -code if code < 0 else code - 128  # a shell ends with 128 + N
        if signal > 0:
            cause = " (out of memory is the usual cause)" if signal == SIGKILL else ""
            return f"killed by signal {signal}{cause}", True
        if code:
            return f"exit code {code}", code == ExitCode.STOPPED
        return "" if self._is_visible(part) else "exit code 0, but no part was made", False

    def _is_visible(self, part: PreparePart) -> bool:
        deadline = time.monotonic() + VISIBLE
        while not self._folder.is_complete(part):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True


def _cause(folder: PartsFolder, part: PreparePart, problem: str) -> tuple[str, ...]:
    return problem, *folder.last_lines(part, 1)


def _report(folder: PartsFolder, failures: Mapping[PreparePart, str]) -> str:
    """Return the table of failures; parts with the same last words are one entry."""
    entries: dict[tuple[str, ...], list[PreparePart]] = {}
    for part in sorted(failures, key=lambda part: part.number):
        entries.setdefault(_cause(folder, part, failures[part]), []).append(part)
    lines = [f"{len(failures):,} of {len(folder.parts):,} parts failed; the same command makes only what is missing"]
    for (reason, *_), (first, *others) in [*entries.items()][:_SHOWN]:
        more = f" and {len(others):,} more" if others else ""
        lines.append(f"  part {first}{more}: {reason}; {folder.log(first)} ends with")
        lines += [f"    {line}" for line in folder.last_lines(first)] or ["    nothing"]
    if len(entries) > _SHOWN:
        lines.append(f"  and {len(entries) - _SHOWN:,} more causes, see {folder.log(folder.parts[0]).parent}")
    return "\n".join(lines)
