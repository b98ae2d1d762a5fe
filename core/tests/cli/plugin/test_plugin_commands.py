"""Commands of plugins: found by name, imported when they are called, and blamed for their own errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core import CommandSpec
from recipe_core.cli.main import cli, main
from recipe_core.hooks.specs.command import CORE_COMMANDS
from recipe_core.testing.conformance import light
from recipe_core.testing.conformance.outcome import FailedCheck
from recipe_core.testing.packages import install_plugin

PLUGIN = """
from recipe_core import CommandSpec, hookimpl

@hookimpl
def register_commands():
    for name, summary in {COMMANDS}.items():
        yield CommandSpec(name=name, build="MODULE:" + name.replace("-", "_"), summary=summary)
"""
CODE = """
import sys
import click
from recipe_core import ConfigError, RecipeCommand, job_of, recipe_arguments

@click.command()
@click.argument("way")
def end(way):
    "End in some way."
    endings = {
        "one": lambda: 1, "none": lambda: None, "text": lambda: "5", "true": lambda: True, "large": lambda: 256,
        "exit": lambda: sys.exit(7), "exit-text": lambda: sys.exit("no luck"), "exit-none": lambda: sys.exit(),
        "ctx": lambda: click.get_current_context().exit(3),
        "bug": lambda: {}["key"], "message": lambda: (_ for _ in ()).throw(ConfigError("x: expected y")),
        "usage": lambda: (_ for _ in ()).throw(click.UsageError("so not")),
        "no": lambda: click.confirm("sure?", abort=True),
        "pipe": lambda: (_ for _ in ()).throw(BrokenPipeError(32, "pipe")),
        "missing": lambda: open("/no/such/file"),
    }
    return endings[way]()

@click.group()
def many():
    "Has commands of its own."

@many.command()
def fails():
    "Fails."
    raise ZeroDivisionError("by hand")

@click.command(cls=RecipeCommand)
@recipe_arguments
def steps(arguments):
    "Print the steps of a recipe."
    click.echo(job_of(arguments).train.steps)

def plain():
    "No click command."

run = click.Command("run", callback=lambda: click.echo("not the core's"), help="Of a plugin.")
export = click.Command("export", callback=lambda: click.echo("exported"), help="Of a plugin.")
"""
COMMANDS = {"end": "end in some way", "many": "has commands of its own", "steps": "print the steps", "plain": "wrong",
            "run": "of a plugin", "export": "the plugin's export", "gone": "is not there"}  # fmt: skip

Say = Callable[..., tuple[int, str, str]]


def write(site: Path, name: str, commands: dict[str, str], code: str = CODE) -> None:
    install_plugin(site, name, name, distribution=f"{name}-dist")
    (site / f"{name}.py").write_text(PLUGIN.replace("{COMMANDS}", repr(commands)).replace("MODULE", f"{name}_code"))
    (site / f"{name}_code.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    install_plugin(folder, "toy", "recipe_core.testing.toy")
    write(folder, "extra", COMMANDS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("RECIPE_PLUGINS", "toy,extra")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def say(site: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    def type_it(*words: str) -> tuple[int, str, str]:
        for name in ("extra", "extra_code", "second", "second_code"):
            sys.modules.pop(name, None)  # as in a new process
        code = main(words)
        return code, *capsys.readouterr()

    return type_it


def test_the_names_of_the_core_are_those_of_its_commands() -> None:
    assert set(CORE_COMMANDS) == set(cli.commands)


def test_help_lists_them_and_imports_none(say: Say) -> None:
    code, out, err = say("--help")
    assert (code, err) == (0, "")
    head, tail = out.split("\nCommands of plugins:\n")
    assert "completion" in head
    rows = {**COMMANDS, "extra/run": COMMANDS["run"]}
    del rows["run"]
    assert [tuple(line.split(maxsplit=1)) for line in tail.splitlines()] == sorted(rows.items())
    assert "extra_code" not in sys.modules


def test_help_of_one_imports_it(say: Say) -> None:
    code, out, err = say("end", "--help")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: recipe end [OPTIONS] WAY\n\n  End in some way.\n")
    assert "--debug" in out
    assert "extra_code" in sys.modules


def test_commands_of_the_core_load_no_plugin(say: Say) -> None:
    assert say("--version")[0] == 0
    assert say("status", "--help")[0] == 0
    assert "extra" not in sys.modules


@pytest.mark.parametrize(
    ("way", "expected", "said"),
    [
        ("one", 1, ""),
        ("none", 0, ""),
        ("text", 0, ""),
        ("true", 0, ""),
        ("exit", 7, ""),
        ("exit-none", 0, ""),
        ("exit-text", 1, "no luck\n"),
        ("ctx", 3, ""),
        ("message", 2, "recipe end: x: expected y\n"),
        (
            "bug",
            2,
            "recipe end: command 'end': 'extra_code:end' raised KeyError: 'key' (extra_code.py, line 14); fix the "
            "plugin (--debug shows the traceback)\n",
        ),
        ("large", 2, "recipe end: command 'end': 'extra_code:end' returned 256; expected an exit code from 0 to 255\n"),
        (
            "usage",
            2,
            "Usage: recipe end [OPTIONS] WAY\nTry 'recipe end --help' for help.\n\nError: so not\n",
        ),
    ],
)
def test_ways_to_end(say: Say, way: str, expected: int, said: str) -> None:
    assert say("end", way) == (expected, "", said)


def test_a_file_that_the_command_does_not_expect_to_be_missing(say: Say) -> None:
    code, _, err = say("end", "missing")
    assert code == 2
    assert "raised FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file' (extra_code.py, " in err


def test_an_answer_of_no_is_no_ctrl_c(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: "n")
    code, _, err = say("end", "no")
    assert (code, err) == (1, "Error: aborted\n")


def test_a_closed_pipe_is_no_mistake(say: Say) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["end", "pipe"], prog_name="recipe", standalone_mode=False)
    assert ended.value.code == 1


def test_debug_shows_the_traceback(say: Say) -> None:
    for words in (["--debug", "end", "bug"], ["end", "bug", "--debug"]):
        code, _, err = say(*words)
        assert code == 2
        assert "return endings[way]()" in err
        assert err.splitlines()[-1].startswith("recipe end: command 'end'")


def test_a_command_of_a_group(say: Say) -> None:
    code, _, err = say("many", "fails", "--debug")
    assert code == 2
    assert err.splitlines()[-1].startswith(
        "recipe many fails: command 'many': 'extra_code:many' raised ZeroDivisionError"
    )


def test_the_job_of_its_arguments(say: Say) -> None:
    assert say("steps", "toy", "train.steps=17") == (0, "17\n", "")
    code, _, err = say("steps", "toy", "train.step=17")
    assert code == 2
    assert err.startswith("recipe steps: train.step: ")
    Path("run").mkdir()
    Path("run/job.yaml").write_text(say("show", "toy", "train.steps=19")[1])
    assert say("steps", "run") == (0, "19\n", "")
    assert say("steps")[0] == 2
    code, _, err = say("steps", "toy", "--steps", "3")
    assert err == "recipe steps: --steps: no such option; write `train.steps=3`\n"


def test_names_of_the_core_stay_the_cores(say: Say) -> None:
    assert "Train." in say("run", "--help")[1]
    assert say("extra/run") == (0, "not the core's\n", "")
    code, out, err = say("ls")
    assert (code, err) == (0, "recipe: command 'run' is the core's own; that of plugin 'extra' goes by extra/run\n")
    assert re.search(r"^  extra/run +extra +of a plugin$", out.split("\nCommands\n")[1], re.MULTILINE)
    assert say("extra/end", "one")[0] == 1
    assert say("export")[1] == "exported\n"  # before the hint for a command of other tools


def test_two_plugins_with_one_name(say: Say, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(site, "second", {"end": "another", "run": "another"})
    monkeypatch.setenv("RECIPE_PLUGINS", "toy,extra,second")
    said = (
        "command 'end' is provided by plugin 'extra' and by plugin 'second'; say which one: extra/end or second/end\n"
    )
    assert say("end", "one") == (2, "", f"recipe: {said}")
    assert say("second/end", "exit")[0] == 7
    assert say("second/run") == (0, "not the core's\n", "")
    code, _, err = say("ls")
    assert code == 1
    assert err.splitlines()[0] == f"recipe: {said.strip()}"


def test_a_mistyped_name(say: Say) -> None:
    code, out, err = say("stepz", "toy")
    assert (code, out) == (2, "")
    assert "Error: no command 'stepz'; did you mean 'steps'? (commands: ls, " in err
    assert "completion, end, export, extra/run, gone, many, plain, steps)" in err
    assert "write `recipe run NAME`" in say("train", "toy")[2]


def test_what_is_no_command(say: Say) -> None:
    code, _, err = say("plain")
    assert code == 2
    assert err.startswith("recipe: command 'plain': 'extra_code:plain' is <function plain at 0x")
    assert err.endswith("; expected a click command (write @click.command() above the function)\n")
    code, _, err = say("gone")
    assert code == 2
    assert err.startswith("recipe: command 'gone': 'extra_code:gone' cannot be imported (AttributeError: ")


def test_a_broken_plugin_leaves_the_others(say: Say, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(site, "second", {"other": "another"})
    (site / "second.py").write_text("1 / 0")
    monkeypatch.setenv("RECIPE_PLUGINS", "toy,extra,second")
    complaint = "recipe: plugin 'second' did not load and is left out: ZeroDivisionError: division by zero"
    assert say("end", "one") == (1, "", f"{complaint} (second.py, line 1)\n")
    code, out, err = say("--help")
    assert (code, err) == (0, f"{complaint} (second.py, line 1)\n")
    assert "end in some way" in out
    assert say("show", "toy")[0] == 0


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("recipe s", ["show", "submit", "status", "stop", "steps"]),
        ("recipe ext", ["extra/run"]),
        ("recipe many ", ["fails"]),
        ("recipe steps to", ["toy"]),
        ("recipe plain ", []),
        ("recipe nothing ", []),
    ],
)
def test_completion(say: Say, monkeypatch: pytest.MonkeyPatch, words: str, offered: list[str]) -> None:
    monkeypatch.setenv("_RECIPE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", words)
    monkeypatch.setenv("COMP_POINT", str(len(words)))
    _, out, err = say()
    assert err == ""
    assert [line.partition(",")[2] for line in out.splitlines() if line] == offered


def test_ctrl_c(site: Path) -> None:
    """The command says when it waits, so that the signal comes within it."""
    code = "import click, signal\n\n@click.command()\ndef wait():\n    click.echo('here')\n    signal.pause()\n"
    write(site, "second", {"wait": "waits"}, code)
    arguments = [sys.executable, "-m", "recipe_core.cli", "wait"]
    environment = {**os.environ, "RECIPE_PLUGINS": "second"}
    with subprocess.Popen(arguments, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "recipe wait: interrupted")


def test_the_examined_command(site: Path) -> None:
    plugin: object = type("Plugin", (), {"name": "extra"})()

    def failure(name: str, build: str) -> str:
        with pytest.raises(FailedCheck) as failed:
            light.command_help(plugin, CommandSpec(name=name, build=build))  # type: ignore[arg-type]
        return str(failed.value)

    assert "`recipe run` is the core's" in failure("run", "extra_code:run")
    (site / "bare_code.py").write_text("import click\n\n@click.command()\ndef bare():\n    pass\n")
    (site / "heavy_code.py").write_text('import click, torch\n\n@click.command()\ndef heavy():\n    "Help."\n')
    assert failure("bare", "bare_code:bare").startswith("bare_code:bare: it has no help")
    assert "its module imports" in failure("heavy", "heavy_code:heavy")
    assert light.command_help(plugin, CommandSpec(name="end", build="extra_code:end")) == "3 arguments and options"  # type: ignore[arg-type]
