"""A plugin with a mistake: one message that names it, no traceback, exit code 2, and other recipes still run."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe_core.cli.main import main
from recipe_core.testing.conformance.suite import installed_with
from recipe_core.testing.packages import install_plugin

Case = dict[str, Any]
TABLE = yaml.safe_load(Path(__file__).with_name("broken_plugins.yaml").read_text(encoding="utf-8"))
CASES: list[Case] = TABLE["cases"]
COMMANDS = {
    "ls": ["check"],
    "check": ["check"],
    "run": ["run"],
    "warn": ["run"],
    "command": ["greet"],
    "list": ["ls"],
    "prepare": ["prepare", "pieces", "output=pieces", "--on=crew", "--parts=1"],
    "submit": ["submit", "--to=post", "--nodes=1", "--processes-per-node=1", "--time=10m"],
}

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of packages with the entry points of the toy and of the plugin."""
    folder = tmp_path / "site"
    (folder / "broken").mkdir(parents=True)
    for name, module in (("broken", "broken.plugin"), ("toy", "recipe_core.testing.toy")):
        install_plugin(folder, name, module, distribution=f"{name}-dist")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("RECIPE_PLUGINS", "toy,broken")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    monkeypatch.chdir(tmp_path)
    return folder


def install(site: Path, case: Case | None) -> None:
    """Write the plugin, with the mistake of ``case``."""
    files: dict[str, str] = dict(TABLE["sound"])
    if case is not None:
        assert case["old"] in files[case["file"]], f"{case['old']!r} does not stand in the {case['file']}"
        files[case["file"]] = files[case["file"]].replace(case["old"], case["new"], 1)
    (site / "broken" / "__init__.py").write_text("")
    for name, text in files.items():
        encoding = case["encoding"] if case is not None and case["file"] == name and "encoding" in case else "utf-8"
        (site / "broken" / f"{name}.py").write_text(text, encoding=encoding)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def type_it(*words: str) -> tuple[int, str, str]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "broken"]:
            del sys.modules[name]  # as in a new process
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return type_it


def test_the_sound_plugin_is_sound(site: Path, say: Say) -> None:
    """Otherwise the messages below could come from another mistake."""
    install(site, None)
    assert say("check", "broken:tiny")[::2] == (0, "")
    code, out, err = say("run", "broken:tiny", "--out", "sound")
    assert (code, err) == (0, "")
    assert "said" in out


def test_each_part_of_the_sound_plugin_is_sound(site: Path, say: Say) -> None:
    install(site, None)
    parts = ("loss=half", "optimizer=push", "schedule=even", "checkpoint=plain_file", "engine=own")
    listed = ("callbacks=watch", "trackers=diary", "transforms=bend", "wrappers=around", "evaluations=probe")
    words = ("broken:tiny", *parts, *listed, "train.eval_every=1", "train.eval_samples=2", "--out", "sound")
    assert say("run", *words)[::2] == (0, "")
    assert say(*COMMANDS["submit"], "broken:tiny", "--out", "submitted")[::2] == (0, "")
    assert say(*COMMANDS["command"], "--times", "2") == (0, "hello hello \n", "")
    assert say(*COMMANDS["list"])[::2] == (0, "")
    assert say(*COMMANDS["prepare"])[0] == 0


def test_an_entry_point_of_another_name_is_said(site: Path, say: Say) -> None:
    install(site, None)
    (points,) = site.glob("broken*/entry_points.txt")
    points.write_text(points.read_text().replace("broken.plugin", "broken.plugin:nothing"))
    code, _, err = say("check", "broken:tiny")
    said = "AttributeError: module 'broken.plugin' has no attribute 'nothing'"
    assert (code, err.startswith(f"recipe: plugin 'broken' did not load and is left out: {said}\n")) == (2, True), err


def test_a_broken_plugin_does_not_fail_the_checks_of_another(site: Path, say: Say) -> None:
    changed(site, "plugin", "@dataclass", "1 / 0\n@dataclass")
    assert say("ls")[0] == 1
    assert "toy" in installed_with("recipe_core.testing.toy").plugins
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        installed_with("broken.plugin")


@pytest.mark.parametrize("case", CASES, ids=[case["what"] for case in CASES])
def test_a_mistake_is_said_once_and_others_go_on(site: Path, say: Say, case: Case) -> None:
    install(site, case)
    command = COMMANDS[case["when"]]
    job = [] if case["when"] in ("command", "list", "prepare") else ["broken:tiny", "--out", "broken-run"]
    code, out, err = say(*command, *job, *case.get("words", "").split())
    assert "Traceback" not in out + err
    said = re.escape(case["said"].replace("SITE", str(site))).replace("…", ".*")
    if case["when"] == "ls":
        first, last = err.splitlines()
        assert re.fullmatch(f"recipe: {said}", first), first
        assert last.startswith("recipe check: no recipe named 'broken'"), last
        assert say("ls")[0] == 1
    elif case["when"] == "warn":
        assert re.match(f"warning: {said}\n", err), err
    elif case["when"] == "command":
        assert re.fullmatch(f"(recipe( greet)?: )?{said}\n", err), err
    else:
        name = "" if case["when"] == "list" else f" {command[0]}"
        assert re.fullmatch(f"recipe{name}: {said}\n", err, re.DOTALL), err
    assert code == case.get("code", 0 if case["when"] in ("warn", "list") else 2)
    assert not list(Path().glob("*/job.sh")), "a script was written outside of its folder"
    assert say("check", "toy:tiny")[0] == 0


def changed(site: Path, file: str, old: str, new: str) -> None:
    """Install the plugin with ``old`` replaced by ``new`` in one file."""
    install(site, {"file": file, "old": old, "new": new})


def test_an_error_in_closing_leaves_the_results(site: Path, say: Say) -> None:
    changed(site, "code", 'return {"notes"', 'module.head\n    return {"notes"')
    assert say("run", "broken", "--out", "out")[0] == 2
    results = json.loads(Path("out/results.json").read_text())
    assert (results["step"], results["steps"], results["stopped"]) == (2, 2, None)
    assert results["loss"] > 0
    changed(site, "code", "notes", "notes")  # fixed: the same command finishes the run
    assert say("run", "broken", "--out", "out")[::2] == (0, "")
    assert json.loads(Path("out/results.json").read_text())["notes"] == {"closing": "said"}


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("row[step]", r"raised NameError: name 'step' is not defined \(facts.py, line \d+\); fix the plugin .*"),
        ("None", r"returned None, and not a line"),
    ],
)
def test_an_error_in_log_line_does_not_end_the_run(site: Path, say: Say, new: str, said: str) -> None:
    changed(site, "facts", """f"step {row['step']}\"""", new)
    code, out, err = say("run", "broken", "--out", "out")
    assert code == 0
    pattern = rf"warning: recipe 'broken': 'broken.facts:line' {said}; the plain lines follow\n"
    assert re.fullmatch(pattern, err), err  # once, in two steps
    assert len(re.findall(r"^[12]/2  loss ", out, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("target", "said"),
    [("broken.facts:nothing", "cannot be imported"), ("broken.facts:line", "raised TypeError: line\\(\\) missing")],
)
def test_an_engine_that_cannot_tell_is_left_out_of_auto(site: Path, say: Say, target: str, said: str) -> None:
    changed(site, "plugin", 'name="own", ', f'name="own", claims="{target}", ')
    code, _, err = say("check", "toy:tiny")
    assert code == 0
    assert re.match(rf"recipe: engine=auto leaves engine 'own' out: engine 'own': '{target}' {said}", err), err


def test_a_part_by_its_full_name_goes_into_job_and_checkpoint_and_is_found_again(site: Path, say: Say) -> None:
    changed(site, "plugin", 'name="plain"', 'name="ddp"')
    words = ("run", "toy:tiny", "layout=broken/ddp", "--out", "out", "train.keep=0", "train.save_every=2")
    assert say(*words, "train.stop_after=2")[::2] == (0, "")
    for file in ("out/job.yaml", "out/checkpoints/step-2/job.yaml"):
        assert yaml.safe_load(Path(file).read_text())["layout"] == {"use": "broken/ddp"}
    assert yaml.safe_load(say("show", "out/job.yaml")[1])["layout"] == {"use": "broken/ddp"}
    code, out, err = say("run", "out/job.yaml", "--out", "out", "train.stop_after=2")
    assert (code, err) == (0, "")
    assert "continuing after step 2" in out
    assert say("convert", "out", "weights.pt", "--to", "single")[0] == 0
    assert yaml.safe_load(say("show", "toy", "layout=ddp")[1])["layout"]["use"] == "ddp"
    code, out, err = say("ls")
    assert (code, err) == (0, "recipe: layout 'ddp' is the core's own; that of plugin 'broken' goes by broken/ddp\n")
    assert re.search(r"^  broken/ddp +broken$", out, re.MULTILINE)


def test_check_compares_facts_where_it_builds_the_model_anyway(site: Path, say: Say) -> None:
    """For a run folder or a start, check builds the model with ``deferred``, without values."""
    install(site, None)
    assert say("run", "broken", "train.stop_after=1", "--out", "out")[0] == 0
    changed(site, "facts", "parameters=2 * (4 * 4 + 4)", "parameters=5")
    plugin = site / "broken" / "plugin.py"
    plugin.write_text(plugin.read_text().replace("blocks=", "deferred=True, blocks=", 1))
    code, _, err = say("check", "broken", "--out", "out")
    assert (code, err) == (
        2,
        "recipe check: model 'net': its facts (broken.facts:facts) say parameters=5, and the module has 40. "
        "Estimates would be wrong; fix the plugin\n",
    )
