"""The status of a run, from the files of its folder, the processes of this machine, and the batch system."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from recipe_core.errors import ConfigError, ExitCode, PluginError
from recipe_core.files.documents import read_json
from recipe_core.hooks.target import call
from recipe_core.launch.ending import Ending, kind_of, read_ending
from recipe_core.launch.launchers.submitted import Submitted, read_note
from recipe_core.launch.process import Process, read_process

if TYPE_CHECKING:
    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs.launcher import JobState

State = Literal["new", "waiting", "starting", "running", "stopped", "finished", "failed", "killed", "unknown"]
ACTIVE: tuple[State, ...] = ("waiting", "starting", "running")
"""States of a run that ends without another command."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of a run."""

    state: State
    detail: str = ""
    """The reason, for messages."""
    exit_code: int | None = None
    process: Process | None = None
    """The last process that trained in the folder."""
    job: Submitted | None = None
    """The last submitted job."""
    job_state: JobState | None = None
    ending: Ending | None = None
    """Why the last start of several processes ended, if recorded."""


def run_status(registry: Registry, out: Path) -> RunStatus:
    """Return the status of the run in the folder ``out``.

    Raises:
        ConfigError: ``out`` is not a run folder.
    """
    if not (out / "job.yaml").is_file():
        raise ConfigError(f"{out}: expected a run folder, and there is no job.yaml in it")
    process, job = read_process(out), read_note(out)
    job_state = _job_state(registry, job)
    facts = {"process": process, "job": job, "job_state": job_state}
    if process is not None and process.ended is None and (running := _running(out, process, job, job_state)):
        return RunStatus(state=running[0], detail=running[1], **facts)  # type: ignore[arg-type]
    if job is not None and job_state in ("waiting", "running"):
        state: State = "waiting" if job_state == "waiting" else "starting"
        return RunStatus(state=state, detail=f"job {job.job_id} of {job.launcher}", **facts)  # type: ignore[arg-type]
    if process is None:
        return _never_started(out, facts)
    ending = read_ending(out, process.began)
    state, code, detail = final_state(out, process, ending)
    return RunStatus(state=state, exit_code=code, detail=detail, ending=ending, **facts)  # type: ignore[arg-type]


def _never_started(out: Path, facts: dict[str, Any]) -> RunStatus:
    """The status of a run without a process; its job may have ended before one started."""
    job, job_state = facts["job"], facts["job_state"]
    ending = read_ending(out, job.submitted) if job is not None else None
    if ending is not None:
        return RunStatus(state="failed", exit_code=ending.exit_code, detail=ending.line(), ending=ending, **facts)
    detail = "no process has trained here yet"
    if job is not None and job_state == "ended":
        detail += f", and job {job.job_id} of {job.launcher} has ended: `recipe logs {out}` may tell why"
    return RunStatus(state="new", detail=detail, **facts)


def busy_job(registry: Registry, out: Path) -> str:
    """Describe the waiting or running job or process of the folder; empty if there is none."""
    job = read_note(out)
    state = _job_state(registry, job)
    if job is not None and state in ("waiting", "running"):
        return f"job {job.job_id} of {job.launcher} is {state} for it"
    process = read_process(out)
    return f"process {process.pid} trains in it" if process and process.ended is None and process.is_alive() else ""


def _job_state(registry: Registry, job: Submitted | None) -> JobState | None:
    if job is None:
        return None
    try:
        launcher = registry.get("launcher", job.launcher)
    except PluginError:  # its plugin was uninstalled after the job was submitted
        return "unknown"
    state: JobState = call(launcher.state, f"launcher {job.launcher!r}", job.job_id) if launcher.state else "unknown"
    return state


def _running(
    out: Path, process: Process, job: Submitted | None, job_state: JobState | None
) -> tuple[State, str] | None:
    """State and detail of a process without a recorded end; None if it has ended all the same."""
    where = f"process {process.pid} on {process.host}"
    if process.is_here():
        return ("running", where) if process.is_alive() else None
    from_job = job is not None and process.job_id and job.submitted <= process.began
    if from_job and job_state == "running" and not _results(out, process):
        return "running", f"{where}, job {process.job_id}"
    if (from_job and job_state != "unknown") or _results(out, process) or _is_external(read_ending(out, process.began)):
        return None
    return "unknown", f"{where}, which this machine cannot ask"


def final_state(out: Path, process: Process, ending: Ending | None) -> tuple[State, int | None, str]:
    """Return state, exit code and reason of a run whose process has ended."""
    if _is_external(ending):
        state: State = "stopped" if ending.exit_code == ExitCode.STOPPED else "failed"
        return "killed" if ending.kind == "killed" else state, ending.exit_code, ending.line()
    results = _results(out, process)
    if process.ended is None and not results:
        return "killed", None, f"process {process.pid} on {process.host} ended without a word"
    code = process.exit_code if process.exit_code is not None else results.get("exit_code")
    if code == ExitCode.STOPPED or (code in (None, 0) and results.get("stopped")):
        reason = str(results.get("stopped") or process.reason or "")
        return "stopped", ExitCode.STOPPED if code is None else code, reason
    if process.exit_code:
        return "killed" if kind_of(process.exit_code) == "killed" else "failed", process.exit_code, process.reason
    if results.get("step") == results.get("steps"):
        return "finished", 0, ""
    if results.get("ended_by"):
        return "finished", 0, f"ended by {results['ended_by']}"
    return "stopped", 0, "by train.stop_after"


def _is_external(ending: Ending | None) -> TypeGuard[Ending]:
    """True for an ending that the process may not know of; a signal that stopped it is in its own record."""
    return ending is not None and ending.kind != "stopped"


def _results(out: Path, process: Process) -> Mapping[str, Any]:
    """results.json, unless an earlier process wrote it."""
    path = out / "results.json"
    try:
        fresh = path.stat().st_mtime >= process.began - 2  # clocks of a shared disk differ a little
        return dict(read_json(path)) if fresh else {}
    except (OSError, ValueError, TypeError):
        return {}


def wait_for_end(registry: Registry, out: Path, seconds: float) -> RunStatus:
    """Wait at most ``seconds`` until the run is no longer active; return its status."""
    deadline, pause = time.monotonic() + seconds, 0.2
    while (status := run_status(registry, out)).state in ACTIVE and time.monotonic() < deadline:
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(5.0, pause * 1.5)
    return status
