"""The pages of mistakes in plugins and on the command line, from tables that tests verify."""

from __future__ import annotations

from pathlib import Path

import yaml

TABLE = Path(__file__).parents[1] / "core" / "tests" / "hooks" / "broken_plugins.yaml"
HEAD = """\
<!-- Written by docs/generate.py from core/tests/hooks/broken_plugins.yaml; change it, run `nox -s docs -- --write`. -->

# Mistakes in a plugin

Each ends in one message, without a traceback (`--debug` shows it), and other recipes keep working. Here the plugin is
called `broken`; … stands for any text, and SITE for its installation folder. `recipe plugin check` finds them too.

Two plugins may use one name: the core's own contribution keeps it, and any other is called `plugin/name`, as in
`layout=broken/ddp` or `recipe run broken/tiny`. `recipe ls` shows the names to type. A recipe takes the parts of its
own plugin first. `job.yaml` records the plugin of each part, so that a run continues with it, whatever is installed
later.
"""
USERS = Path(__file__).parents[1] / "tests" / "mistakes.yaml"
USERS_HEAD = """\
<!-- Written by docs/generate.py from tests/mistakes.yaml; change it, run `nox -s docs -- --write`. -->

# Mistakes and their answers

Commands with a mistake, and their messages. Each exits with [code 2](exit-codes.md) before anything is trained or
written. `my.txt` is a text and `folder` an empty folder; … stands for a list. A command reports all its mistakes
together.
"""
PARTS = {
    "ls": (
        "Reported by every command",
        "The plugin is left out, and the message begins with `plugin 'broken' did not load and is left out:`.",
    ),
    "check": (
        "Reported by `recipe check`, and by `recipe run` before it starts",
        "These commands look up the code that a recipe and its parts name, without importing it.",
    ),
    "run": ("Reported by `recipe run`", "Before or at the first step, or at the end of training."),
    "warn": ("Warnings of `recipe run`", "Reported once; training continues."),
    "list": ("Notes of `recipe ls`", "The plugin works; its part is called by the longer name."),
    "command": (
        "Reported when its command is called",
        "`recipe greet` is the command of the plugin. It ends with code 2, unless it says another.",
    ),
    "submit": ("Reported by `recipe submit`", "Nothing is submitted."),
    "prepare": (
        "Reported by `recipe prepare --on`",
        "The executor is ended, with what it had started; parts that are complete are kept.",
    ),
}
LEFT_OUT = "plugin 'broken' did not load and is left out: "


def page() -> str:
    """Return the page of mistakes in a plugin."""
    cases = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["cases"]
    parts = [HEAD]
    for when, (title, text) in PARTS.items():
        rows = [_row(case) for case in cases if case["when"] == when]
        parts.append("\n".join([f"## {title}\n\n{text}\n", "| mistake | message |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _row(case: dict[str, str]) -> str:
    said = case["said"].removeprefix(LEFT_OUT).replace("|", "\\|")
    code = f" (code {case['code']})" if "code" in case else ""
    return f"| {case['what']} | `{said}`{code} |"


def users_page() -> str:
    """Return the page of mistakes on the command line."""
    cases = yaml.safe_load(USERS.read_text(encoding="utf-8"))
    blocks = [f"```text\n$ {case['typed']}\n{case['said']}\n```" for case in cases]
    return "\n\n".join([USERS_HEAD.rstrip(), *blocks]) + "\n"
