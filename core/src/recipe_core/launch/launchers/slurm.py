"""Slurm: the batch script of a run, with one task of srun for each rank.

The script restarts the ranks if `recipe status --again` says that the same command may continue, unless two starts in a
row saved nothing new. srun's exit code is not enough for that: it is the highest of all ranks. Slurm's signal before
the time limit goes to the ranks; the script waits for them.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from recipe_core.errors import ConfigError
from recipe_core.hooks.specs.launcher import Submission
from recipe_core.launch.ending import AGAIN, KINDS
from recipe_core.launch.launchers.site import negative

SCRIPT, PRECOMPILE = "run.sbatch", "precompile.sbatch"
_TASK = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
_GRACE = 30
"""Seconds that the ranks have to end once one of them has diagnosed a hang."""
_CODES = " ".join(f"{kind}) code={int(code)} ;;" for code, kind in KINDS.items() if kind not in ("finished", *AGAIN))
"""Branches of a shell's ``case``: the job's exit code for each kind of end after which it is not restarted."""
_PLAIN = re.compile(r"[\w./=:@+,%-]*", re.ASCII)
_QUOTED = re.compile(r'(["\\])')
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Section ``slurm`` of a site profile. Options that are empty or 0 are left to the cluster's defaults."""

    partition: str = ""
    """Partition of the cluster, as ``sinfo`` lists it."""
    account: str = ""
    """Account to which the time is charged."""
    qos: str = ""
    """Quality of service."""
    constraint: str = ""
    """Features that the nodes must have."""
    gpus_per_process: int = 0
    """GPUs for each process; the job requests the GPUs of a whole node (``--gpus-per-node``)."""
    gpu_type: str = ""
    """Kind of GPU, if the cluster has several: ``h100``."""
    cpus_per_process: int = 0
    """Processor cores for each process."""
    node_memory_gb: int = 0
    """Main memory to request on each node (10^9 bytes)."""
    exclusive: bool = False
    """Share the nodes with no other job."""
    exclude_failing: bool = False
    """Restart a job without the node of the rank that was lost, killed or hung; the run's log names it."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, one word each: ``--reservation=march``."""

    def __post_init__(self) -> None:
        problems = negative(self, "gpus_per_process", "cpus_per_process", "node_memory_gb")
        problems += [
            f"options: expected an option of sbatch as one word (--name=value), got {option!r}"
            for option in self.options
            if not re.fullmatch(r"--?[A-Za-z][^\n]*", option)
        ]
        if self.gpu_type and not self.gpus_per_process:
            problems.append("gpu_type: it says which GPUs, and gpus_per_process is 0; set that too")
        if problems:
            raise ValueError("\n".join(problems))


def scripts(submission: Submission, config: Slurm) -> dict[str, str]:
    """Return the batch scripts by file name: one for the run, and one for the compilation before it, if any.

    Raises:
        ConfigError: there is no time limit, or sbatch cannot take a path in a script.
    """
    if not submission.minutes:
        raise ConfigError("--time: Slurm wants a time limit, such as --time 4:00:00")
    for path in (submission.out, submission.folder):
        if re.search(r"[\\\n\r]", str(path)):
            raise ConfigError(f"{path}: Slurm takes no path with a backslash or a line break; choose another folder")
    files = {SCRIPT: _script(submission, config, _run_lines(submission, config))}
    if submission.precompile:
        files[PRECOMPILE] = _script(submission, config, _precompile_lines(submission, config), run=False)
    return files


def _script(submission: Submission, config: Slurm, body: Iterator[str], *, run: bool = True) -> str:
    head = ["#!/bin/bash", "# Written by `recipe submit`; `sbatch` with this file submits it again."]
    options = [sbatch_line(option) for option in _options(submission, config, run)]
    return "\n".join([*head, *options, "", *_common(submission, run), "", *body]) + "\n"


def _options(submission: Submission, config: Slurm, run: bool) -> Iterator[str]:
    """The options of sbatch, without quotes."""
    array = submission.array > 0 and run
    number = "%A_%a" if array else "%j"
    logs = str(submission.out / "logs").replace("%", "%%")
    days, minutes = divmod(submission.minutes, 24 * 60)
    yield f"--job-name={submission.name}{'' if run else '-precompile'}"
    yield f"--chdir={submission.folder}"
    yield f"--output={logs}/slurm-{number}.log"
    yield "--open-mode=append"
    yield f"--nodes={submission.nodes}"
    yield f"--ntasks-per-node={submission.processes_per_node}"
    yield f"--time={days}-{minutes // 60:02}:{minutes % 60:02}:00"
    if run:
        yield f"--signal=USR1@{submission.stop_seconds}"
        yield "--requeue"
    if array:
        yield f"--array=0-{submission.array - 1}"
    yield from queue_options(config)
    if config.gpus_per_process:
        kind = f"{config.gpu_type}:" if config.gpu_type else ""
        yield f"--gpus-per-node={kind}{config.gpus_per_process * submission.processes_per_node}"
    if config.cpus_per_process:
        yield f"--cpus-per-task={config.cpus_per_process}"
    if config.node_memory_gb:
        yield f"--mem={config.node_memory_gb}G"
    if config.exclusive:
        yield "--exclusive"
    yield from config.options


def queue_options(config: Slurm) -> Iterator[str]:
    """Yield the options of sbatch that say who asks for which part of the cluster."""
    for name in ("partition", "account", "qos", "constraint"):
        if value := getattr(config, name):
            yield f"--{name}={value}"


def _common(submission: Submission, run: bool) -> Iterator[str]:
    yield f"recipe=({shlex.join(submission.program or (sys.executable, '-m', 'recipe_core.cli'))})"
    folder = shlex.quote(str(submission.out))
    which = '/"seed-$SLURM_ARRAY_TASK_ID"' if run else "/seed-0"  # one compilation serves all seeds
    yield f"run={folder}{which if submission.array else ''}"
    if run:
        yield f"job={_TASK if submission.array else '$SLURM_JOB_ID'}"
    if submission.setup:
        yield "\n# The site profile's setup."
        yield submission.setup.rstrip()
    yield "\n# Variables for the ranks, where the cluster does not set them."
    yield "export PYTHONUNBUFFERED=1"
    yield 'export OMP_NUM_THREADS="${OMP_NUM_THREADS-${SLURM_CPUS_PER_TASK-1}}"'
    yield from exports(submission.environment)


def exports(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a script that set environment variables, unless the machine sets them."""
    for name, value in environment.items():
        if _VARIABLE.fullmatch(name):  # set first, so that quotes need no nesting
            yield f'[ "${{{name}+set}}" ] || export {name}={shlex.quote(value)}'


def _srun(submission: Submission, config: Slurm) -> str:
    # One task for each rank. When one ends or is lost, Slurm must not kill the others while they save.
    cores = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"' if config.cpus_per_process else ""
    return f"srun --kill-on-bad-exit=0 --wait={submission.exit_seconds}{cores}"


def _precompile_lines(submission: Submission, config: Slurm) -> Iterator[str]:
    yield f'exec {_srun(submission, config)} "${{recipe[@]}}" precompile "$run/job.yaml" --out "$run"'


def _run_lines(submission: Submission, config: Slurm) -> Iterator[str]:
    yield f"""\
# Every start of this job notes the step of the newest checkpoint: a job that saves nothing new is not started for ever.
mkdir -p "$run/launch" "$run/logs"
starts="$run/launch/starts-$job"
stop="$run/launch/stop-$job"  # written by `recipe stop`
at_step() {{ "${{recipe[@]}}" status "$run" --step; }}
stuck() {{ [ "$(tail -n "$1" "$starts" | grep -cxF -- "$2")" -ge "$1" ]; }}
give_up() {{ echo "recipe: two starts in a row saved nothing after step $1; not started again" >&2; }}
step=$(at_step) || exit 2
echo "$step" >> "$starts"
if stuck 3 "$step"; then give_up "$step"; exit 1; fi
if [ -e "$stop" ]; then exit 0; fi
began=$(date +%s)
tell() {{ echo "recipe: $1" >&2; scontrol update JobId="$SLURM_JOB_ID" Comment="${{1:0:200}}" 2> /dev/null; }}
{_check_lines(submission)}
# Signals are for the ranks, which save and end; this script waits for them.
trap : TERM INT HUP USR1 USR2
# A rank that others found hanging may not end by itself, and Slurm would wait for it.
verdict() {{ while [ ! "$run/launch/verdict" -nt "$starts" ]; do sleep 5; done; }}
step() {{ squeue --steps --noheader --format=%i --jobs="$SLURM_JOB_ID" | grep '[.][0-9]*$'; }}
(verdict; sleep {_GRACE}; scancel --signal=KILL "$(step)") &
watch=$!
{_srun(submission, config)} --label "${{recipe[@]}}" run "$run/job.yaml" --out "$run"
code=$?
kill "$watch" 2> /dev/null
if [ "$code" -eq 0 ]; then exit 0; fi

# srun's code is the highest of all ranks; which of them was the cause, they have told each other.
why=$("${{recipe[@]}}" status "$run" --again --since "$began" --code "$code")
again=$?
# Not RUNNING: it was cancelled, or Slurm starts it again itself.
state=$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")
tell "$why"
if [ "$again" -eq 0 ] && [ ! -e "$stop" ] && [ "$state" = RUNNING ]; then
    step=$(at_step) || exit 2
    if stuck 2 "$step"; then give_up "$step"; exit 1; fi
    {_again(config)}
fi
# What is not started again ends with the code of the cause, for accounting and for jobs that depend on this one.
case "${{why%%:*}}" in {_CODES} esac
exit "$code\""""


def _check_lines(submission: Submission) -> str:
    if not submission.check_nodes:
        return ""
    return f"""
# One process on each node; each ends by itself, with what it has found.
srun --kill-on-bad-exit=0 --wait={_GRACE} --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\
    "${{recipe[@]}}" check "$run/job.yaml" --on-nodes --processes-per-node {submission.processes_per_node} --out "$run"
code=$?
if [ "$code" -ne 0 ]; then
    tell "$("${{recipe[@]}}" status "$run" --again --since "$began" --code "$code")"
    exit "$code"
fi
"""


def _again(config: Slurm) -> str:
    if not config.exclude_failing:
        return 'scontrol requeue "$SLURM_JOB_ID" && sleep 60  # which ends this script'
    return """\
scontrol requeue "$SLURM_JOB_ID" || exit "$code"
    cause='^(lost|killed|hung): rank [0-9]+ on ([^:]+): '
    if [[ $why =~ $cause ]]; then  # it waits now, and may still be told to shun a node
        node=${BASH_REMATCH[2]}
        shunned=$(squeue --noheader --format=%x --jobs="$SLURM_JOB_ID")
        scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="${shunned:+$shunned,}$node" &&
            echo "recipe: starts again without node $node" >&2
    fi
    sleep 60  # until Slurm ends this script"""


def sbatch_line(option: str) -> str:
    """Return the line ``#SBATCH`` of an option; only ``"`` and a backslash are special in double quotes."""
    if _PLAIN.fullmatch(option):
        return f"#SBATCH {option}"
    name, equals, value = option.partition("=") if "=" in option else ("", "", option)
    quoted = _QUOTED.sub(r"\\\1", value)
    return f'#SBATCH {name}{equals}"{quoted}"'
