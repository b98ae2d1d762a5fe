"""``recipe plugin new``: the new package is found, resolves, trains and passes its own tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe_core import plugin
from recipe_core.cli.main import main
from recipe_core.cli.plugin import new
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.testing import command
from recipe_core.testing.packages import install_plugin

KINDS = tuple(new.SENTENCES)
CORE = load([("core", lambda: plugin)])


def installed(folder: Path, site: Path) -> dict[str, str]:
    """An environment with an editable install of the package in ``folder``."""
    name = folder.name.replace("-", "_")
    install_plugin(site, name, f"recipe_{name}.plugin", distribution=f"recipe-{folder.name}", version="0.1.0")
    paths = [str(site), str(folder.absolute() / "src"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "RECIPE_PLUGINS": name}


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_complete(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "new", "my-part", "--kind", kind]) == 0
    assert "recipe plugin check my_part" in capsys.readouterr().out
    texts = {path: path.read_text(encoding="utf-8") for path in Path("my-part").rglob("*") if path.is_file()}
    assert [
        path for path, text in texts.items() if "new_plugin" in text or "new-plugin" in text or "NewPl" in text
    ] == []
    for path, text in texts.items():
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    done = command("check", "my_part:tiny", **installed(Path("my-part"), tmp_path / "site"))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("version", "pin"),
    [
        ("0.1.0", "~=0.1"),
        ("1.12.3", "~=1.12"),
        ("2.0.0.post1", "~=2.0"),
        ("1.4.2+cpu.rc1", "~=1.4"),
        ("1.4.0rc1", "~=1.4.dev0"),
        ("0.2.0.dev3+g12ab", "~=0.2.dev0"),
    ],
)
def test_a_package_needs_the_core_it_was_made_with_or_later(
    version: str, pin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new.metadata, "version", {"recipe-core": version}.__getitem__)
    new.new_plugin(CORE, "mine", "model")
    text = Path("mine", "pyproject.toml").read_text(encoding="utf-8")
    (written,) = re.findall(r'"recipe-core(.*?)"', text)
    assert written == pin
    requirement = pytest.importorskip("packaging.specifiers").SpecifierSet(written)
    major = int(version.partition(".")[0])
    assert [requirement.contains(other) for other in (version, f"{major}.99", f"{major + 1}.0")] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("My-Part", "expected at most 30 small letters"),
        ("1st", "expected at most 30 small letters"),
        ("../out", "expected at most 30 small letters"),
        ("a" * 31, "expected at most 30 small letters"),
        ("class", "no word of Python"),
        ("core", "is a name of recipe's own packages"),
        ("ddp", "a layout has this name already; choose another, such as my-ddp"),
        ("adamw", "a optimizer has this name already"),
        ("native", "an engine has this name already"),
    ],
)
def test_a_name_that_cannot_be(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        new.new_plugin(CORE, name, "model")
    assert text.replace("a optimizer", "an optimizer") in str(error.value)
    assert not Path(name).exists() or name == "../out"


def test_a_command_cannot_have_the_name_of_the_cores() -> None:
    with pytest.raises(
        ConfigError, match="'prepare': is a command of recipe's own; choose another name, such as my-prep"
    ):
        new.new_plugin(CORE, "prepare", "command")
    assert new.new_plugin(CORE, "prepare", "loss") == Path("prepare")


def test_a_folder_with_content_stays_as_it_is() -> None:
    Path("mine").mkdir()
    Path("mine", "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="mine: exists and is not an empty folder"):
        new.new_plugin(CORE, "mine", "model")
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


def test_an_empty_folder_is_filled() -> None:
    Path("mine").mkdir()
    new.new_plugin(CORE, "mine", "model")
    assert Path("mine", "src", "recipe_mine", "plugin.py").is_file()
    assert [path.name for path in Path.cwd().iterdir()] == ["mine"]


def seconds_of_an_import() -> float:
    """Seconds in which a new process imports PyTorch; 1.5 on the machine where the five minutes were measured."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - start


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", [kind if kind == "model" else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_from_nothing_to_a_passing_check(kind: str, tmp_path: Path) -> None:
    """The commands of the page "A plugin in five minutes", one by one."""
    reference = seconds_of_an_import()
    start = time.monotonic()
    assert command("plugin", "new", "my-part", "--kind", kind).returncode == 0
    environment = installed(Path("my-part"), tmp_path / "site")
    run = command("run", "my_part:tiny", "--out", "run", **environment)
    assert run.returncode == 0, run.stdout
    check = command("plugin", "check", "my_part", **environment)
    assert check.returncode == 0, check.stdout
    assert ", 0 failed, " in check.stdout
    seconds = time.monotonic() - start
    assert seconds < 200 * max(reference, seconds_of_an_import())
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my-part"]
    tests = subprocess.run(arguments, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stdout
