"""The shell script of a node on which torchrun starts the ranks, and the YAML that contains it."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Mapping
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.hooks.specs.launcher import Submission

JOB = "/tmp/recipe-job.yaml"
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY(?:_ID)?|PRIVATE_KEY)(?:_.*)?",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|A[KS]IA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|xox[abp]-[\w-]{10,})|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Tokens of the Hugging Face Hub, AWS, GitHub, OpenAI and Slack, and private keys."""


def refuse_secrets(submission: Submission, texts: Mapping[str, str], remedy: str) -> None:
    """Refuse a submission whose YAML, which is printed and stored, would contain a likely secret.

    Args:
        submission: the run.
        texts: further text of the YAML, by its setting.
        remedy: how to pass a secret to the job instead.

    Raises:
        ConfigError: the message names the setting, not the value.
    """
    named = [
        f"environment.{name}"
        for name, value in submission.environment.items()
        if value and _SECRET_NAME.fullmatch(name)
    ]
    everything = {
        **{f"environment.{name}": value for name, value in submission.environment.items()},
        "setup": submission.setup, "the settings of the run": submission.job, **texts,
    }  # fmt: skip
    suspects = [*named, *(where for where, text in everything.items() if _SECRET_VALUE.search(text))]
    if suspects:
        raise ConfigError(
            f"{', '.join(dict.fromkeys(suspects))}: looks like a secret, which everybody could read in the YAML; "
            f"{remedy}"
        )


def node_script(submission: Submission, out: str, options: str, number: int = 0) -> str:
    """Return the script of each node, which contains the job's settings.

    Args:
        submission: the run; its folder need not exist.
        out: the run folder as the node sees it.
        options: of torchrun, as shell words.
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
        _same_version(program),
        f"printf %s {shlex.quote(submission.job)} > {JOB}",
        "began=$(date +%s)",
        """trap '[ "$!" ] || exit 143; signal=1; kill -TERM "$!"' TERM INT HUP  # the ranks save and end""",
        f"{_limit(submission)}torchrun {options}--no-python \\",
        f"    {program} run {JOB}{seed} --out {shlex.quote(out)} &",
        _ENDING.format(program=program, out=shlex.quote(out)).rstrip(),
    ]
    return "\n".join(filter(None, lines)) + "\n"


_ENDING = """\
while signal=; wait "$!"; code=$?; [ "$signal" ]; do :; done
[ "$code" -ne 0 ] || exit 0
# torchrun ends with 1 whatever happened; the ranks have told each other.
why=$({program} status {out} --again --since "$began" --code "$code") && code=75
echo "recipe: $why" >&2
exit "$code"
"""
"""The end of the script; it exits with 75 if the same command may continue the run."""


def _same_version(program: str) -> str:
    # The image may have another version of recipe than the machine that submitted the run.
    version = importlib.metadata.version("recipe-core")
    return (
        f"there=$({program} --version) || exit 2\n"
        f'[ "${{there##* }}" = {version} ] || {{ echo "recipe: this machine has $there, and {version} submitted the '
        'run; use the same version in both places" >&2; exit 2; }'
    )


def _limit(submission: Submission) -> str:
    # SIGTERM has the run save and stop before the time limit; SIGKILL ends it at the limit.
    if not submission.minutes:
        return ""
    seconds = submission.minutes * 60 - submission.stop_seconds
    return f"timeout --signal=TERM --kill-after={submission.stop_seconds} {seconds} "


def as_yaml(documents: list[dict[str, Any]]) -> str:
    """Return documents as YAML, with multi-line text in block style."""
    import yaml

    class BlockTextDumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    BlockTextDumper.add_representer(str, text)
    return yaml.dump_all(documents, Dumper=BlockTextDumper, sort_keys=False, allow_unicode=True, width=120)
