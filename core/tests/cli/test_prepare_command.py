"""``recipe prepare``, ``inspect`` and ``verify`` with a plugin of this test."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from recipe_core.cli.main import cli, main
from recipe_core.data.prepare.pool import ordered_map
from recipe_core.launch.cores import SPIN_LIMITS, SPIN_VARIABLES

PLUGIN = """
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipe_core import Dataset, hookimpl
from recipe_core.errors import DataError
from recipe_core.data.prepare import Inspection


@dataclass(frozen=True)
class Settings:
    inputs: tuple[str, ...] = ()
    size: int = 3
    how: Literal["fast", "slow"] = "fast"
    output: str = ""

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size: expected at least 1, got {self.size}")


@hookimpl
def register_datasets():
    both = {"build": "toy_data:none", "files": "toy_data:Files"}
    yield Dataset(name="toy", summary="a toy", prepare="toy_data:prepare", prepare_config=Settings, **both)
    yield Dataset(name="toy-2", summary="another", prepare="toy_data:prepare", prepare_config=Settings, **both)
    yield Dataset(name="other", build="toy_data:none", files="toy_data:Other")


def prepare(settings):
    if "bad" in settings.inputs:
        raise DataError("bad: is bad")
    counts = {"documents": 12345, "skipped": 0, "train": {"samples": settings.size}}
    return {"kind": settings.how, "counts": counts, "files": {}, "settings": {}}


class Files:
    def detect(self, path):
        return path.suffix == ".toy"

    def inspect(self, path, tokenizer):
        lengths = (("1-9", 1), ("10-99", 400), ("100-", 0))
        return Inspection(kind="toys", facts=(("samples", "7"),), lengths=lengths, example=f"by {tokenizer}")

    def verify(self, path):
        return ["a.toy: one", "a.toy: two"][: int(path.stem)]


class Other:
    def detect(self, path):
        return path.name == "1.toy.other"
"""
Typed = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run a command line with the plugin above as the only one."""
    (tmp_path / "toy_data.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    point = importlib.metadata.EntryPoint("toys", "toy_data", "recipe.plugins")
    # other packages have plugins, too
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (point,) if group == point.group else ())
    monkeypatch.delitem(sys.modules, "toy_data", raising=False)

    def run(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_without_a_name_it_lists_what_there_is(typed: Typed) -> None:
    code, out, err = typed("prepare")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "What can be prepared",
        "  toy    a toy",
        "         settings: inputs, size, how, output",
        "  toy-2  another",
        "         settings: inputs, size, how, output",
        "",
        "`recipe prepare DATASET inputs=FILES output=FOLDER setting=value ...` makes it.",
    ]


def test_it_tells_what_was_made(typed: Typed) -> None:
    code, out, err = typed("prepare size=5 toy-2 inputs=a,b output=data/toy how=slow")
    assert (code, err) == (0, "")
    assert [line.split("  ", 2)[1:] for line in out.splitlines()] == [
        ["documents", "    12,345"],
        ["train samples", "5"],
        ["kind", "         slow"],
        ["written to", "   data/toy"],
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prepare tyo", "recipe prepare: nothing named 'tyo' can be prepared; did you mean 'toy'? (there are: to"),
        ("prepare other", "recipe prepare: nothing named 'other' can be prepared (there are: toy, toy-2)"),
        ("prepare toy toy-2", "expected one data set (toy, toy-2), got 'toy' and 'toy-2'; a setting is wr"),
        ("prepare size=1", "expected one data set (toy, toy-2); a setting is written setting=value"),
        ("prepare toy size=0", "recipe prepare: size: expected at least 1, got 0"),
        ("prepare toy size=x", "recipe prepare: size: expected a whole number, got 'x'"),
        ("prepare toy how=fats", "recipe prepare: how: expected 'fast' or 'slow', got 'fats'; did you mean 'fast'?"),
        ("prepare toy siez=1", "recipe prepare: siez: no such setting; did you mean 'size'? (settings: inputs, size"),
        ("prepare toy a.b=1", "recipe prepare: 'a.b=1': expected setting=value, as in output=data/wiki"),
        ("prepare toy siez=1 size=x", "recipe prepare: 2 problems:\n  - siez: no such setting"),
        ("prepare toy inputs=bad", "recipe prepare: bad: is bad"),
        ("inspect no.txt", "recipe inspect: no.txt: there is no such file or folder, nor files that start with"),
        ("verify toy_data.py", "verify: toy_data.py: holds no data set that an installed plugin knows (they know: oth"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_message(typed: Typed, line: str, message: str) -> None:
    code, out, err = typed(line)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_inspect(typed: Typed) -> None:
    code, out, _ = typed("inspect x.toy --tokenizer t.json")
    assert code == 0
    assert out.splitlines() == [
        "x.toy: toys",
        "",
        "  samples  7",
        "",
        "Lengths",
        "",
        "    1-9    1  █",
        f"  10-99  400  {'█' * 40}",
        "   100-    0",
        "",
        "An example",
        "",
        "by t.json",
    ]


@pytest.mark.parametrize(
    ("path", "code", "out", "err"),
    [
        ("0.toy", 0, "0.toy: no problem found\n", ""),
        ("1.toy", 1, "a.toy: one\n", "1.toy: 1 problem\n"),
        ("2.toy", 1, "a.toy: one\na.toy: two\n", "2.toy: 2 problems\n"),
    ],
)
def test_verify_ends_with_1_where_something_is_wrong(typed: Typed, path: str, code: int, out: str, err: str) -> None:
    assert typed(f"verify {path}") == (code, out, err)


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize(
    ("arguments", "incomplete", "replies"),
    [
        ([], "", ["toy", "toy-2", "merge"]),
        ([], "toy-", ["toy-2"]),
        (["toy"], "", ["inputs=", "size=", "how=", "output="]),
        (["toy", "size=1"], "ho", ["how="]),
        (["toy"], "how=", ["how=fast", "how=slow"]),
        (["toy"], "how=s", ["how=slow"]),
        (["toy"], "size=", []),
        (["unknown"], "", []),
    ],
)
def test_completion(arguments: list[str], incomplete: str, replies: list[str]) -> None:
    command = cli.commands["prepare"]
    context = click.Context(command, info_name="prepare")
    context.params["arguments"] = tuple(arguments)
    found = command.params[0].shell_complete(context, incomplete)
    assert [item.value for item in found] == replies


def test_workers_that_prepare_have_a_limit_of_spinning(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    import toy_data  # type: ignore[import-not-found]

    for name in SPIN_VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the command sets is taken back
        monkeypatch.delenv(name)

    def prepare(settings: object) -> dict[str, object]:
        return {"counts": dict(zip("ab", ordered_map(os.getenv, SPIN_LIMITS, 2, str), strict=True))}

    monkeypatch.setattr(toy_data, "prepare", prepare)
    code, out, _ = typed("prepare toy output=here")
    assert code == 0
    assert [line.split() for line in out.splitlines()[:2]] == [["a", "2000"], ["b", "1"]]
