"""A plugin with a mistake: one message that names it, no traceback, exit code 2, and other recipes go on."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from recipe_core.cli.main import main

Case = dict[str, str]
TABLE = yaml.safe_load(Path(__file__).with_name("broken_plugins.yaml").read_text(encoding="utf-8"))
CASES: list[Case] = TABLE["cases"]

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with the toy's entry point and the plugin's."""
    folder = tmp_path / "site"
    (folder / "broken").mkdir(parents=True)
    for name, module in (("broken", "broken.plugin"), ("toy", "recipe_core.testing.toy")):
        info = folder / f"{name}_dist-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[recipe.plugins]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("RECIPE_PLUGINS", "toy,broken")
    monkeypatch.chdir(tmp_path)
    return folder


def install(site: Path, case: Case | None) -> None:
    """Write the plugin with the mistake of ``case``."""
    files: dict[str, str] = dict(TABLE["sound"])
    if case is not None:
        assert case["old"] in files[case["file"]], f"{case['old']!r} does not stand in the {case['file']}"
        files[case["file"]] = files[case["file"]].replace(case["old"], case["new"], 1)
    (site / "broken" / "__init__.py").write_text("")
    for name, text in files.items():
        (site / "broken" / f"{name}.py").write_text(text)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def type_it(*words: str) -> tuple[int, str, str]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "broken"]:
            del sys.modules[name]  # as a new process begins
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return type_it


def test_the_sound_plugin_is_sound(site: Path, say: Say) -> None:
    """Or every mistake below could be another than it says."""
    install(site, None)
    assert say("check", "broken:tiny")[::2] == (0, "")
    code, out, err = say("run", "broken:tiny", "--out", "sound")
    assert (code, err) == (0, "")
    assert "said" in out


@pytest.mark.parametrize("case", CASES, ids=[case["what"] for case in CASES])
def test_a_mistake_is_said_once_and_others_go_on(site: Path, say: Say, case: Case) -> None:
    install(site, case)
    command = "run" if case["when"] == "run" else "check"
    code, out, err = say(command, "broken:tiny", "--out", "broken-run")
    assert "Traceback" not in out + err
    said = re.escape(case["said"].replace("SITE", str(site))).replace("…", ".*")
    if case["when"] == "ls":
        first, last = err.splitlines()
        assert re.fullmatch(f"recipe: {said}", first), first
        assert last.startswith("recipe check: no recipe named 'broken'"), last
        assert say("ls")[0] == 1
    else:
        assert re.fullmatch(f"recipe {command}: {said}\n", err, re.DOTALL), err
    assert code == 2
    assert say("check", "toy:tiny")[0] == 0
