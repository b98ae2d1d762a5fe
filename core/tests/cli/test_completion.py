"""Shell completion: the offered values, and bash, which splits words at ":" and "="."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from recipe_core import Dataset, Model, Recipe, Use, hookimpl, plugin
from recipe_core.cli.completion import complete_arguments
from recipe_core.hooks.registry import load


@dataclass(frozen=True)
class FakeRope:
    scaled: bool = False


@dataclass(frozen=True)
class FakeGpt:
    layers: int = 4
    norm: Literal["layer", "rms"] = "layer"
    rope: FakeRope = field(default_factory=FakeRope)


@dataclass(frozen=True)
class FakeBert:
    depth: int = 4


class FakePlugin:
    @hookimpl
    def register_models(self) -> Iterable[Model]:
        yield Model(name="gpt", build="a:b", config=FakeGpt)
        yield Model(name="bert", build="a:b", config=FakeBert)

    @hookimpl
    def register_datasets(self) -> Iterable[Dataset]:
        yield Dataset(name="tokens", build="a:b")

    @hookimpl
    def register_recipes(self) -> Iterable[Recipe]:
        variants = {"tiny": {}, "6.7b": {}}
        yield Recipe(name="gpt_small", summary="", model=Use("gpt"), data=Use("tokens"), variants=variants)
        yield Recipe(name="bert_small", summary="", model=Use("bert"), data=Use("tokens"))


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load([("core", lambda: plugin), ("fakes", FakePlugin)])
    monkeypatch.setattr("recipe_core.cli.completion.load", lambda: registry)


def offered(line: str) -> list[str]:
    *arguments, incomplete = line.split(" ")
    return [item.value for item in complete_arguments(arguments, incomplete)]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("", ["bert_small", "gpt_small"]),
        ("g", ["gpt_small"]),
        ("gpt_small", ["gpt_small", "gpt_small:tiny", "gpt_small:6.7b"]),
        ("gpt_small:t", ["gpt_small:tiny"]),
        ("x", []),
        ("layout=ddp g", ["gpt_small"]),
        ("gpt_small mo", ["model=", "model.layers=", "model.norm=", "model.rope=", "model.rope.scaled="]),
        ("gpt_small:tiny model=bert model.", ["model.depth="]),
        ("gpt_small model=none model", ["model="]),
        ("gpt_small train.prec", ["train.precision="]),
        ("gpt_small train.precision=bf16", ["train.precision=bf16_mixed", "train.precision=bf16"]),
        ("gpt_small train.compile=", ["train.compile=true", "train.compile=false", "train.compile=null"]),
        ("gpt_small train.stop_after=", ["train.stop_after=null"]),
        ("gpt_small train.lr=", []),
        ("gpt_small model.norm=r", ["model.norm=rms"]),
        ("gpt_small model.rope.scaled=t", ["model.rope.scaled=true"]),
        ("gpt_small model=", ["model=bert", "model=gpt"]),
        ("gpt_small layout.use=s", ["layout.use=single"]),
        ("gpt_small engine=", ["engine=auto", "engine=native"]),
        ("gpt_small train.engine=n", ["train.engine=native"]),
        ("unknown train.ste", ["train.steps="]),
        ("unknown model.", []),
    ],
)
def test_offered_values(line: str, values: list[str]) -> None:
    assert offered(line) == values


def test_a_path_is_left_to_the_shell() -> None:
    (item,) = complete_arguments([], "runs/x")
    assert (item.value, item.type) == ("runs/x", "file")


def test_a_mistake_in_the_line_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load([("core", lambda: plugin), ("fakes", FakePlugin), ("rival", FakePlugin)])
    monkeypatch.setattr("recipe_core.cli.completion.load", lambda: registry)
    assert len(registry.conflicts()) == 5
    assert offered("gpt_small model.") == []


@pytest.fixture
def bash(tmp_path: Path) -> Path:
    """A folder with the command, for bash to find."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    command = tmp_path / "recipe"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m recipe_core.cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        (
            "recipe ",
            [
                "ls",
                "show",
                "check",
                "run",
                "precompile",
                "submit",
                "status",
                "logs",
                "stop",
                "compare",
                "report",
                "prepare",
                "inspect",
                "verify",
                "generate",
                "eval",
                "convert",
                "merge",
                "doctor",
                "plugin",
                "completion",
            ],
        ),
        ("recipe sh", ["show"]),
        ("recipe completion ", ["bash", "zsh", "fish"]),
        ("recipe run --pro", ["--processes"]),
        ("recipe compare runs/a --to", ["--tolerance"]),
        ("recipe show unknown train.gol", ["train.golden=", "train.golden_tolerance="]),
        ("recipe show unknown train.ste", ["train.steps="]),
        ("recipe show unknown train.schedule=co", ["constant", "cosine"]),
        ("recipe show --debug unknown layout=", ["ddp", "fsdp", "pp", "single", "tp", "zero1"]),
        ("recipe show unknown layout=ddp layout.use=si", ["single"]),
        ("recipe show unknown:tiny train.schedule=l", ["linear"]),
    ],
)
def test_bash(line: str, replies: list[str], bash: Path) -> None:
    """Bash replaces only the text after the last ':' or '=', so that replies contain nothing else."""
    script = (
        'eval "$(recipe completion bash)"; compopt() { :; }; COMP_LINE="$1"; COMP_POINT=${#1}; '
        '_recipe_completion recipe; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{bash}{os.pathsep}{os.environ['PATH']}", "RECIPE_PLUGINS": ""}
    done = subprocess.run(["bash", "-c", script, "bash", line], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == replies


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_clicks_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    from recipe_core.cli.main import main

    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "_RECIPE_COMPLETE" in out
    assert f"{shell}_complete" in out
