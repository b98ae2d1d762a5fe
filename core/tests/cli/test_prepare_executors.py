"""``recipe prepare ... --on EXECUTOR --parts N``: bytes, retries, a second run, what is refused and what is deleted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_core.data.prepare.executors import schedule
from recipe_core.testing.packages import install_plugin

Say = Callable[..., tuple[int, str, str]]
LINE = ("prepare", "mortal", "inputs=lines.jsonl")


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Say:
    """Type a command in a folder with lines of JSON, where the plugin ``mortal_data`` is installed."""
    install_plugin(tmp_path / "site", "mortal", "mortal_data")
    paths = [tmp_path / "site", Path(__file__).parent / "plugin"]
    for path in paths:
        monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [*map(str, paths), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("RECIPE_PLUGINS", "mortal")
    monkeypatch.chdir(tmp_path)
    Path("lines.jsonl").write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(40)))
    Path("orders").mkdir()

    def type_it(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        return code, *capfd.readouterr()

    return type_it


def order(part: int, what: str) -> None:
    Path("orders", f"{part}.{what}").touch()


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def until(condition: Callable[[], object], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.05)


@pytest.mark.parametrize("on", ["local:3", "killing"])
def test_the_bytes_are_those_of_one_process(say: Say, tmp_path: Path, on: str) -> None:
    code, out, err = say(*LINE, "output=made", "--on", on, "--parts", "4")
    assert code == 0, err
    assert "written to  made" in out
    assert re.search("4 of 4 parts", err), err
    assert main([*LINE, "output=whole"]) == 0
    assert contents("made") == contents("whole")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "made"))) == ["made"]
    assert ("killed by signal 9 (out of memory is the usual cause); it starts again" in err) == (on == "killing")


def test_more_parts_than_documents(say: Say) -> None:
    Path("lines.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    code, _, err = say(*LINE, "output=made", "--on", "local:4", "--parts", "5")
    assert code == 0, err
    assert Path("made/capitals.txt").read_text() == "ONE\nTWO\n"


def test_a_part_that_is_killed_starts_again_and_a_mistake_does_not(say: Say) -> None:
    order(1, "9")
    order(2, "wrong")
    for number in (9, 15, 6, 11):
        order(3, str(number))
    code, out, err = say(*LINE, "output=made", "--on", "local:2", "--parts", "4")
    assert (code, out) == (1, "")
    assert (
        "part 1/4: killed by signal 9 (out of memory is the usual cause); it starts again (start 2 of at most 4)" in err
    )
    table = err[err.index("recipe prepare: 2 of 4 parts failed") :].splitlines()
    log = Path("made.parts/logs").absolute()
    assert table == [
        "recipe prepare: 2 of 4 parts failed; the same command makes only what is missing",
        f"  part 2/4: exit code 2; {log}/2-of-4.log ends with",
        "    recipe prepare: lines.jsonl: is wrong",
        f"  part 3/4: killed by signal 9 (out of memory is the usual cause); {log}/3-of-4.log ends with",
        "    nothing",
    ]
    assert not Path("made").exists()
    before = {path: path.stat().st_mtime_ns for path in Path("made.parts").glob("[14]-of-4/*")}
    assert len(before) == 4
    Path("orders/2.wrong").unlink()
    code, _, err = say(*LINE, "output=made", "--on", "local:2", "--parts", "4")
    assert code == 0, err
    assert "4 of 4 parts" in err
    assert main([*LINE, "output=whole"]) == 0
    assert contents("made") == contents("whole")


def test_a_part_that_is_killed_after_its_last_file_is_complete(say: Say, tmp_path: Path) -> None:
    for number in (1, 3):
        order(number, "late")
    code, _, err = say(*LINE, "output=made", "--on", "local:2", "--parts", "3")
    assert code == 0, err
    assert "starts again" not in err
    assert main([*LINE, "output=whole"]) == 0
    assert contents("made") == contents("whole")
    assert sorted(path.name for path in tmp_path.glob("*made*")) == ["made"]


def test_parts_that_fail_alike_are_one_entry(say: Say) -> None:
    """The first three and none without: the setting is wrong, and the others are not made."""
    for number in range(1, 9):
        order(number, "wrong")
    code, _, err = say(*LINE, "output=made", "--on", "local:1", "--parts", "8")
    assert code == 1
    assert "recipe prepare: 3 of 8 parts failed" in err
    assert "\n  part 1/8 and 2 more: exit code 2; " in err
    assert err.count("is wrong") == 1
    assert not Path("made.parts/logs/6-of-8.log").exists()


def test_a_part_that_makes_nothing_has_failed(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "VISIBLE", 0.0)
    order(2, "vanish")
    code, _, err = say(*LINE, "output=made", "--on", "local:2", "--parts", "2")
    assert code == 1
    assert "part 2/2: exit code 0, but no part was made" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_was_started_and_the_same_command_goes_on(say: Say, number: int) -> None:
    order(2, "wait")
    words = (*LINE, "output=made", "--on", "local:2", "--parts", "3")
    command = [sys.executable, "-m", "recipe_core.cli", *words]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    waits = Path("orders/2.waits")
    done = [Path("made.parts", f"{part}-of-3", "manifest.json") for part in (1, 3)]
    until(lambda: waits.exists() and waits.read_text() and all(map(Path.exists, done)))
    part = int(waits.read_text())
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == (130 if number == signal.SIGINT else 75), err
    folder = Path("made.parts").absolute()
    assert f"ended what it had started; {folder} keeps the parts, and the same command makes only the others" in err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(part, 0)
    Path("orders/2.wait").unlink()
    before = [path.stat().st_mtime_ns for path in done]
    assert [path.stat().st_mtime_ns for path in done] == before
    code, _, err = say(*words)
    assert code == 0, err
    assert main([*LINE, "output=whole"]) == 0
    assert contents("made") == contents("whole")


def test_a_part_ends_with_a_command_that_is_killed(say: Say) -> None:
    order(1, "wait")
    words = [*LINE, "output=made", "--on", "local:1", "--parts", "1"]
    running = subprocess.Popen([sys.executable, "-m", "recipe_core.cli", *words], stderr=subprocess.DEVNULL)
    waits = Path("orders/1.waits")
    until(lambda: waits.exists() and waits.read_text())
    code, _, err = say(*words)
    assert code == 2
    assert "made.parts: another process prepares these parts at the moment; wait for it" in err
    running.kill()
    running.wait()

    def gone() -> bool:
        try:
            os.kill(int(waits.read_text()), 0)
        except ProcessLookupError:
            return True
        return False

    until(gone)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--parts 2", "--parts: goes with --on EXECUTOR, as --on local"),
        ("--on local", "--on: needs --parts N, the number of parts, as in --on local --parts 16"),
        ("--on locale --parts 2", "no executor named 'locale'; did you mean 'local'? (there are: away,"),
        ("--on ray --parts 2", "; recipe-ray is not installed: python -m pip install ./plugins/ray, in a clone of"),
        ("--on local:few --parts 2", "--on local:few: expected a number of processes from 1, as in --on local:4"),
        ("--on local:0 --parts 2", "--on local:0: expected a number of processes from 1"),
        ("--on local --parts 2 part=1/2", "part: --on makes all parts; leave part= out"),
        ("--on away:there --parts 2", "--on away:there: nothing answers there"),
        ("--on mistaken --parts 2", "executor 'mistaken': 'mortal_data:mistaken' raised AttributeError: "),
        (
            "--on numberless --parts 1",
            "'mortal_data:numberless': the result of a future is None; expected an exit code",
        ),
        ("--on futureless --parts 1", "'mortal_data:futureless': submit returned [0] for 1 tasks; expected a concur"),
        ("--on local --parts 2 --site nowhere.yaml", "site profile nowhere.yaml: cannot be read"),
    ],
)
def test_a_mistake_is_one_message(say: Say, words: str, message: str) -> None:
    code, out, err = say(*LINE, "output=made", *words.split())
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not Path("made").exists()
    assert Path("made.parts").exists() == ("futureless" in words)  # it has started a part


def test_what_cannot_be_made_in_parts(say: Say) -> None:
    on = ("--on", "local", "--parts", "2")
    for words, message in (
        (
            ("prepare", "undivided", "inputs=lines.jsonl", "output=made"),
            "--on: the dataset 'undivided' does not say how",
        ),
        (LINE, "output: --on needs the folder to make, as in output=data/wiki"),
        (("prepare",), "--on: goes with a data set, as in recipe prepare DATASET output=FOLDER --on local --parts 4"),
        (("prepare", "merge", "made", "one"), "--on: goes with a data set"),
        ((*LINE, "output=orders"), "output: orders exists; name another folder, or remove it (--on replaces none)"),
    ):
        code, out, err = say(*words, *on)
        assert (code, out) == (2, ""), err
        assert message in err
    assert not list(Path().glob("*.parts"))


@pytest.mark.parametrize(
    ("on", "reason", "starts"), [("cancelling", "cancelled", 1), ("losing", "lost: RuntimeError: the node is gone", 4)]
)
def test_what_an_executor_says_of_parts(say: Say, on: str, reason: str, starts: int) -> None:
    code, _, err = say(*LINE, "output=made", "--on", on, "--parts", "2")
    assert code == 1
    assert f"\n  part 1/2 and 1 more: {reason}; " in err
    assert err.count("it starts again") == 2 * (starts - 1)


def test_parts_with_other_settings_are_refused(say: Say) -> None:
    order(2, "wrong")
    Path("other.jsonl").write_text('{"text": "other"}\n')
    assert say(*LINE, "output=made", "--on", "local", "--parts", "2")[0] == 1
    folder = Path("made.parts").absolute()
    for words, message in (
        (
            (*LINE, "--parts", "3"),
            f"{folder}: holds parts of mortal with --parts 2, not of mortal with --parts 3; go on",
        ),
        (
            ("prepare", "mortal", "inputs=other.jsonl", "--parts", "2"),
            f"{folder}/1-of-2: was prepared with inputs=['lines.jsonl'], and not with ['other.jsonl']; give the same",
        ),
    ):
        code, _, err = say(*words, "output=made", "--on", "local")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_nothing_of_others_is_deleted(say: Say) -> None:
    Path("made.parts").mkdir()
    Path("made.parts/mine.txt").touch()
    words = (*LINE, "output=made", "--on", "local", "--parts", "2")
    code, _, err = say(*words)
    assert code == 2
    assert "made.parts: the parts are made in this folder, which is there already and not ours" in err
    Path("made.parts/mine.txt").unlink()
    order(1, "wrong")
    assert say(*words)[0] == 1
    for name in ("mine.txt", "2-of-2/mine.txt", "logs/mine.txt"):
        Path("made.parts", name).touch()
    Path("orders/1.wrong").unlink()
    code, _, err = say(*words)
    assert code == 0, err
    assert err.endswith("made.parts: kept, for it holds what `recipe prepare` did not write (2-of-2, logs, mine.txt)\n")
    files = sorted(str(path.relative_to("made.parts")) for path in Path("made.parts").rglob("*") if path.is_file())
    assert files == ["2-of-2/mine.txt", "lock", "logs/mine.txt", "mine.txt", "preparation.json"]
    assert json.loads(Path("made.parts/preparation.json").read_text()) == {"kind": "mortal", "parts": 2}
