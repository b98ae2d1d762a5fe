"""Mistakes of new users: each line of the table is typed, and its whole answer compared."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from recipe_core.cli.main import main

CASES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text(encoding="utf-8"))


def test_there_are_at_least_sixty() -> None:
    assert len({case["typed"] for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["typed"])
def test_the_answer(
    case: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("A text.\n\nAnd another one.\n")
    Path("folder").mkdir()
    assert main(shlex.split(case["typed"])[1:]) == 2
    out, err = capsys.readouterr()
    said = err.partition("\n\nError: ")[2] or err  # without the usage that click puts before it
    pattern = ".*".join(re.escape(part) for part in case["said"].split("…"))
    assert re.fullmatch(pattern, said.rstrip("\n")), said
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "my.txt"]
