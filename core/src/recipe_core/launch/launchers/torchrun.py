"""The shell of one node where torchrun starts its ranks, and the YAML that holds it."""

from __future__ import annotations

import shlex
from typing import Any

from recipe_core.hooks.launcher import Submission

JOB = "/tmp/recipe-job.yaml"


def node_script(submission: Submission, out: str, options: str, number: int = 0) -> str:
    """Return the script of every node, which brings the job's settings along.

    Args:
        submission: the run; its folder need not be there.
        out: the run folder as the node sees it.
        options: of torchrun, as shell.
        number: of the run within an array.
    """
    program = shlex.join(submission.program or ("recipe",))
    seed = f" train.seed={submission.seed + number}" if submission.array else ""
    lines = [
        submission.setup.rstrip(),
        "export PYTHONUNBUFFERED=1",
        *(
            f'[ "${{{name}+set}}" ] || export {name}={shlex.quote(value)}'
            for name, value in submission.environment.items()
        ),
        f"printf %s {shlex.quote(submission.job)} > {JOB}",
        f"exec {_limit(submission)}torchrun {options}--no-python \\",
        f"    {program} run {JOB}{seed} --out {shlex.quote(out)}",
    ]
    return "\n".join(filter(None, lines)) + "\n"


def _limit(submission: Submission) -> str:
    """A command that asks the run to save and stop before the time limit, and ends it at the limit."""
    if not submission.minutes:
        return ""
    seconds = submission.minutes * 60 - submission.stop_seconds
    return f"timeout --signal=TERM --kill-after={submission.stop_seconds} {seconds} "


def as_yaml(documents: list[dict[str, Any]]) -> str:
    """Return documents as YAML, with text of several lines as it is."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
