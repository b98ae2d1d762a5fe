"""The check itself: what is tried twice, what is printed at the end, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nox", reason="it runs the checks")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from checks import attempts, changes, summary, versions  # noqa: E402

BY_CHANCE = """
from pathlib import Path
def test_chance():
    before = Path("tried").exists()
    Path("tried").touch()
    assert before, "the first time"
"""
BROKEN = "def test_broken():\n    assert 1 == 2\n"
SKIPPED_LATER = BY_CHANCE.replace('assert before, "the first time"', "assert before and pytest.skip()").replace(
    "from pathlib", "import pytest\nfrom pathlib", 1
)
SOUND = "def test_sound():\n    pass\n"


class Quit(Exception):
    pass


class Session:
    """As much of a session of nox as these checks use."""

    name = "core"
    posargs: tuple[str, ...] = ()

    def run(self, program: str, *words: str, env: dict[str, str], success_codes: Any) -> None:
        line = [sys.executable, "-m", program, *words]
        code = subprocess.run(line, env={**os.environ, **env}, capture_output=True, check=False).returncode
        assert code in success_codes

    def error(self, reason: str) -> None:
        raise Quit(reason)

    def log(self, line: str) -> None:
        pass


@pytest.fixture
def tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run files of tests as one session; get what the block at the end says."""
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)

    def run(*, strict: bool = False, changed: set[str] | None = frozenset(), **files: str) -> str:  # type: ignore[assignment]
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        monkeypatch.setattr(attempts, "recent", lambda: changed)
        monkeypatch.setattr(summary, "_SESSIONS", {})
        monkeypatch.setattr(summary.atexit, "register", lambda function: None)
        try:
            with summary.recorded("core"):
                attempts.test(Session(), "-q", "-p", "no:cacheprovider", strict=strict)  # type: ignore[arg-type]
        except Quit as error:
            print("quit:", error)
        capfd.readouterr()
        summary._print()
        return capfd.readouterr().out

    return run


def test_a_failure_by_chance_is_named_and_passes(tested: Callable[..., str]) -> None:
    said = tested(chance=BY_CHANCE, sound=SOUND)
    assert "FLAKY test_chance.py::test_chance (load " in said
    assert "    | E       AssertionError: the first time" in said
    assert "failed" not in said


def test_it_fails_before_a_release(tested: Callable[..., str]) -> None:
    said = tested(chance=BY_CHANCE, strict=True)
    assert "FLAKY test_chance.py::test_chance (load " in said
    assert "1 of 1 sessions failed: core" in said


@pytest.mark.parametrize("changed", [{"test_chance.py"}, None], ids=["changed", "unknown"])
def test_a_changed_test_has_one_try(tested: Callable[..., str], changed: set[str] | None) -> None:
    said = tested(chance=BY_CHANCE, changed=changed)
    assert "FLAKY" not in said
    assert "FAILED test_chance.py::test_chance - AssertionError: the first time" in said
    assert "1 of 1 sessions failed: core" in said


def test_what_fails_twice_is_named_once(tested: Callable[..., str]) -> None:
    said = tested(chance=BY_CHANCE, broken=BROKEN)
    assert said.count("  FAILED test_broken.py::test_broken - assert 1 == 2") == 1
    assert "FLAKY test_chance.py::test_chance" in said
    assert "core FAILED" in said


def test_a_second_try_that_is_skipped_has_not_passed(tested: Callable[..., str]) -> None:
    said = tested(later=SKIPPED_LATER)
    assert "FLAKY" not in said
    assert "1 of 1 sessions failed: core" in said


def test_more_than_five_failures_have_a_cause(tested: Callable[..., str]) -> None:
    many = "\n".join(f"def test_{number}():\n    assert False" for number in range(5))
    said = tested(chance=BY_CHANCE, many=many)
    assert "FLAKY" not in said
    assert said.count("  FAILED ") == 6


def test_a_module_that_cannot_be_imported_has_one_try(tested: Callable[..., str]) -> None:
    said = tested(missing="import no_such_module\n", sound=SOUND)
    assert "FAILED test_missing.py - ModuleNotFoundError: No module named 'no_such_module'" in said
    assert not Path("tried").exists()


def test_no_test_at_all_is_a_failure(tested: Callable[..., str]) -> None:
    assert "1 of 1 sessions failed: core" in tested(nothing="")


def test_a_run_of_tests_has_a_cache_of_its_own(tested: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECIPE_CACHE", "the user's")
    code = "import os, pathlib\ndef test_it():\n    pathlib.Path('place').write_text(os.environ['RECIPE_CACHE'])\n"
    assert "failed" not in tested(place=code)
    place = Path("place").read_text()
    assert place != "the user's"
    assert not Path(place).exists()  # any more


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Runs git in a new repository, whose changes checks.changes looks at."""

    def run(*words: str, **environment: str) -> None:
        words = "git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words
        subprocess.run(words, cwd=tmp_path, check=True, env=os.environ | environment)

    def forget() -> None:
        for function in (changes.base, changes.changed, changes.recent):
            function.cache_clear()

    monkeypatch.setattr(changes, "ROOT", tmp_path)
    monkeypatch.delenv("RECIPE_BASE", raising=False)
    run("init", "--quiet", "--initial-branch=main")
    forget()
    yield run
    forget()


def commit(git: Callable[..., None], path: Path, hour: int) -> None:
    path.touch()
    git("add", str(path))
    git(
        "commit",
        "--quiet",
        "--message",
        path.name,
        GIT_COMMITTER_DATE=f"2026-01-{1 + hour // 24:02} {hour % 24}:00 +0000",
    )


def test_changes_are_those_since_the_last_landing(tmp_path: Path, git: Callable[..., None]) -> None:
    commit(git, tmp_path / "main", hour=0)
    git("switch", "--quiet", "--create", "work")
    commit(git, tmp_path / "work", hour=1)
    (tmp_path / "untracked").touch()
    assert changes.changed() == {"work", "untracked"}


@pytest.mark.parametrize("landed", [False, True])
def test_as_much_is_recent_before_a_landing_as_after_it(tmp_path: Path, git: Callable[..., None], landed: bool) -> None:
    """A flaky test that changed some hours ago had a second try before its landing and none after it."""
    commit(git, tmp_path / "old", hour=0)
    commit(git, tmp_path / "today", hour=20)
    git("switch", "--quiet", "--create", "work")
    commit(git, tmp_path / "work", hour=25)
    if landed:
        git("branch", "--force", "main", "work")
    assert changes.recent() == {"today", "work"}


def test_a_version_has_a_line_for_the_pythons_that_take_it() -> None:
    old, new = {"a": "1", "b": "1"}, {"a": "1", "b": "2", "c": "3"}
    found = versions._lines({"3.10": old, "3.11": new, "3.12": new, "3.13": new})
    assert found == ["a==1", 'b==1 ; python_version == "3.10"', 'b==2 ; python_version >= "3.11"', "c==3"]
