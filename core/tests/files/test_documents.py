"""JSON and YAML from anywhere are read in bounded time and memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from recipe_core.errors import ConfigError, DataError
from recipe_core.files.documents import (
    MOST_YAML,
    DocumentError,
    parse_json,
    parse_yaml,
    read_json,
    read_text,
    read_yaml,
)
from recipe_core.settings.job import resolve
from recipe_core.testing import bounds, toy
from recipe_core.testing.bounds import MeasuredRead, allowed, reading


def repeated(levels: int, line: str) -> str:
    """YAML in which each level refers to the one before nine times."""
    rows = [line.format(number=n, others=", ".join([f"*a{n - 1}"] * 9)) for n in range(1, levels)]
    return "\n".join(["a0: &a0 {x: 1}", *rows])


HOSTILE = {
    "lists in lists": ("[" * 100_000, "nested too deeply"),
    "lists in lists by dashes": ("- " * 100_000 + "x", "nested too deeply"),
    "aliases": (repeated(12, "a{number}: &a{number} [{others}]"), "more than 100,000 values"),
    "merged aliases": (repeated(12, "a{number}: &a{number} {{<<: [{others}]}}"), "more than 100,000 values"),
    "an alias to itself": ("a: &a [*a]", "it contains itself"),
    "a number of many digits": ("a: " + "9" * 100_000, "a number of 100,000 digits"),
    "a number to base 60": ("a: " + ":".join(["59"] * 40_000), "digits"),
    "an object": ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "no day": ("a: 2020-99-99", "month must be in 1..12"),
    "a list as a key": ("{[a]: 1}", "unhashable key"),
    "a value that is not what its tag says": ("a: !!bool 7", "a value is not what its tag says (KeyError: '7')"),
    "bytes": ("a: 1\nb: !!binary /w==", "line 2 has bytes, and settings are text"),
    "no time": ("a: !!timestamp x", "a value is not what its tag says"),
    "a character that YAML does not have": ("a: x\0", "unacceptable character #x0000"),
    "many values": ("a: [" + "x1," * 100_001 + "]", "more than 100,000 values"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_in_time(tmp_path: Path, name: str) -> None:
    path = tmp_path / "job.yaml"
    text, said = HOSTILE[name]
    path.write_text(text)
    outcome = reading(resolve, toy.registry(), str(path))
    outcome.require_bounded(len(text))
    assert outcome.outcome == "refused"
    assert said in outcome.message
    assert outcome.message.startswith(f"{path}: is not YAML (")


@pytest.mark.parametrize("text", ["[" * 100_000, "[x\1]", "[&a [*a]]"])
def test_hostile_text_in_brackets_is_refused_in_time(tmp_path: Path, text: str) -> None:
    """Text of a setting that begins as a list does is read as YAML once more."""
    outcome = reading(resolve, toy.registry(), "toy", [f"train.trackers={text}"])
    outcome.require_bounded(len(text))
    assert (outcome.outcome, "train.trackers" in outcome.message) == ("refused", True)


def test_bounds_on_time_grow_with_a_slower_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        MeasuredRead("read", "", seconds=1e6, memory=0).require_bounded(0)
    monkeypatch.setattr(bounds, "_REFERENCE", 1e6)  # which this machine beats
    assert allowed(5) == 5
    monkeypatch.setattr(bounds, "_REFERENCE", 1e-9)
    assert allowed(5) > 5_000


def test_a_large_file_is_not_read_at_all(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("a: 1\n" * (MOST_YAML // 5 + 1))
    with pytest.raises(DocumentError, match="more than 524,288 bytes"):
        read_yaml(path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
def test_only_regular_files_are_read(tmp_path: Path, make: object) -> None:
    path = tmp_path / "job.yaml"
    make(path)  # type: ignore[operator]
    with pytest.raises((DocumentError, IsADirectoryError)):
        read_text(path)
    outcome = reading(resolve, toy.registry(), str(path))
    outcome.require_bounded(0)
    assert outcome.outcome == "refused"


def test_aliases_that_people_write_are_read() -> None:
    text = "a: &x {b: [1, 2.5, null, yes]}\nc: *x\nd: {<<: *x, e: text}\n"
    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml("") is None


def test_deep_json(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DocumentError, match="nested too deeply"):
        read_json(path)
    with pytest.raises(DocumentError, match="Expecting property name"):
        parse_json("{]")
    assert parse_json(json.dumps({"a": [1, "é"]})) == {"a": [1, "é"]}


def test_errors_that_they_become() -> None:
    assert not issubclass(DocumentError, (ConfigError, DataError))  # callers name the file, and what it should be
