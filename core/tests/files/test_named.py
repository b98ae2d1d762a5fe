"""Paths that settings name: weights, patterns and list files."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.errors import DataError
from recipe_core.files.named import NamedPath, matches, problem_of, read_lists, split_weights


def read(*texts: str) -> list[tuple[str, float | None]]:
    return [(str(one.path), one.weight) for one in read_lists(split_weights(texts))]


def test_a_weight_comes_before_its_path() -> None:
    assert read("a", "b c", "0.3:d,e", "7e-1:/f", "odd:g") == [
        ("a", None), ("b c", None), ("d,e", 0.3), ("/f", 0.7), ("odd:g", None),
    ]  # fmt: skip


def test_weights_and_paths_by_turns_as_megatron_takes_them() -> None:
    assert read("0.3", "a", "0.7", "b") == [("a", 0.3), ("b", 0.7)]
    assert read("1", "2") == [("1", None), ("2", None)]
    assert read("1", "a", "b") == [("1", None), ("a", None), ("b", None)]


def test_a_list_file_names_paths_beside_itself(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("\ufeff# all of it\r\na b\r\n\n/c # for now\n  d#e  \n")
    assert read(f"@{path}", "f") == [
        (f"{tmp_path}/a b", None), ("/c", None), (f"{tmp_path}/d#e", None), ("f", None),
    ]  # fmt: skip
    assert [one.origin for one in read_lists(split_weights([f"@{path}"]))] == [
        f"{path}, line {number}" for number in (2, 4, 5)
    ]


@pytest.mark.parametrize("text", ["0.3:/a b\n0.7:/c", "0.3 /a b\n0.7\t/c", "0.3 /a b\n# no\n0.7 /c\n"])
def test_the_lines_of_a_list_have_weights(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list"
    path.write_text(text)
    assert read(f"@{path}") == [("/a b", 0.3), ("/c", 0.7)]


def test_one_line_of_several_pairs_as_megatron_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("30 /a 70 /b 5 /c\n")
    assert read(f"@{path}") == [("/a", 30.0), ("/b", 70.0), ("/c", 5.0)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a\n@b\n", "list, line 2: @b: a list file names no other list file"),
        ("a\ns3://b/c\n", "list, line 2: s3://b/c: expected a path on this machine"),
        ("a\n0.3:\n", "list, line 2: : expected a path after the weight"),
        ("# none\n\n", "list: the list file names nothing"),
        (None, r"list: the list file cannot be read \(No such file or directory\)"),
    ],
)
def test_a_list_that_cannot_be_read(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "list"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=problem):
        read(f"@{path}")


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (("a", "@b"), ""),
        (("0.3:a", "@b"), ""),
        (("0:a",), "expected weights above 0, got [0.0]"),
        (("0.3:a", "b"), "some have a weight and some have none, got a, b; write weight:path for all or for none"),
        (("0.3:@a",), "a list file takes no weight, got @a; write the weights into its lines"),
        (("a", ""), "expected paths, and one is empty: a, "),
    ],
)
def test_weights_fit_together(texts: tuple[str, ...], problem: str) -> None:
    assert problem_of(split_weights(texts)) == problem


def test_a_pattern_matches_in_order_of_names_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("b.bin", "a.bin", ".c.bin", "d/e.bin", ".f/g.bin", "h.idx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def found(pattern: str) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in matches(tmp_path / pattern)]

    assert found("*.bin") == ["a.bin", "b.bin"]
    assert found("**/*.bin") == ["a.bin", "b.bin", "d/e.bin"]
    assert found(".f/*") == [".f/g.bin"]
    assert found("[bd]*") == ["b.bin", "d"]
    assert found("no*") == []


def test_a_path_knows_whether_it_is_a_pattern() -> None:
    assert [NamedPath(text).is_pattern for text in ("a", "a*", "a?", "[ab]", "a b")] == [False, True, True, True, False]
