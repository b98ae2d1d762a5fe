"""``recipe prepare ... part=K/N`` of a plugin's dataset, and the check of its parts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from recipe_core import plugin
from recipe_core.cli.data import prepare
from recipe_core.cli.main import main
from recipe_core.hooks import registry as registry_module
from recipe_core.hooks.registry import Registry, load
from recipe_core.testing.conformance.examine import examine
from recipe_core.testing.conformance.subject import Plugin


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The core's parts, and those of a plugin whose datasets divide or not."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import dividing_data  # type: ignore[import-not-found]

    found = load([("core", lambda: plugin), ("dividing", lambda: dividing_data)])
    monkeypatch.setattr(prepare, "load_plugins", lambda: found)
    return found


def test_the_check_merges_parts(registry: Registry, tmp_path: Path) -> None:
    found = {one.subject: one for one in examine(Plugin("dividing", "dividing_data", registry, tmp_path), ["parts"])}
    states = {subject: one.state for subject, one in found.items()}
    assert states == {
        "dataset capitals": "passed",
        "dataset loud": "failed",
        "dataset half": "failed",
        "dataset undivided": "skipped",
    }, found
    assert "1, 2, 5 parts give the bytes of one process" in found["dataset capitals"].text
    assert "capitals.txt, manifest.json of 2 parts differs from what one process makes" in found["dataset loud"].text
    assert "merge_parts: names no function" in found["dataset half"].text


def test_the_commands_take_its_parts(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for number in (2, 1):
        assert main(["prepare", "capitals", "inputs=lines.jsonl", f"output=part{number}", f"part={number}/2"]) == 0
    assert main(["prepare", "merge", "all", "part2", "part1"]) == 0
    assert Path("all/capitals.txt").read_text() == "ONE\nTWO\n"
    assert main(["prepare", "loud", "inputs=lines.jsonl", "output=loud", "part=2/2"]) == 0
    capfd.readouterr()
    assert main(["prepare", "merge", "more", "part1", "loud"]) == 2
    expected = "recipe prepare: loud: is a part of loud, and part1 of capitals; merge them apart\n"
    assert capfd.readouterr().err == expected


@pytest.mark.parametrize("name", ["half", "undivided"])
def test_a_dataset_that_does_not_divide_refuses_a_part(
    registry: Registry, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", name, "inputs=x", f"output={tmp_path / 'out'}", "part=1/2"]) == 2
    expected = f"recipe prepare: part: the dataset {name!r} does not say how it divides; prepare it without part=\n"
    assert capfd.readouterr().err == expected


def test_help_and_completions_name_parts(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "merge", "--help"]) == 0
    assert "makes the data set OUTPUT of the folders that" in capfd.readouterr().out
    assert main(["prepare", "capitals", "--help"]) == 0
    assert "part=K/N" in capfd.readouterr().out
    assert main(["prepare"]) == 0
    listing = capfd.readouterr().out.splitlines()
    settings = [line for line in listing if "settings: " in line]
    assert [line.endswith(", output, part") for line in settings] == [True, True, True, False]
    monkeypatch.setattr(registry_module, "load", lambda: registry)
    context = click.Context(prepare.prepare)
    complete = [item.value for item in prepare._complete(context, prepare.prepare.params[0], "m")]
    assert complete == ["merge"]
    context.params["arguments"] = ("capitals",)
    assert [item.value for item in prepare._complete(context, prepare.prepare.params[0], "pa")] == ["part="]
