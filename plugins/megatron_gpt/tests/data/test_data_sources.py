"""Which files a run reads, and how they are split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core import DataError
from recipe_core.engine.agreement import LIBRARIES, VARIABLES
from recipe_core.hooks.registry import load
from recipe_core.launch.identity import differences
from recipe_core.launch.identity import identity as identity_of_process
from recipe_core.settings.job import resolve
from recipe_megatron_gpt.data.sources import TokenFiles, parse, split_ranges
from recipe_megatron_gpt.settings import GptIndexed


def test_a_weight_stands_before_the_path() -> None:
    assert parse(["data/a"]) == [TokenFiles(Path("data/a"), None)]
    assert parse(["0.3:data/a.v2", "7e-1:/b"]) == [TokenFiles(Path("data/a.v2"), 0.3), TokenFiles(Path("/b"), 0.7)]
    assert parse(["odd:name/a"]) == [TokenFiles(Path("odd:name/a"), None)]
    assert parse(["2:odd:name"]) == [TokenFiles(Path("odd:name"), 2.0)]


def test_an_ending_from_the_shell_is_left_out() -> None:
    assert parse(["data/a.bin", "b.idx"]) == [TokenFiles(Path("data/a"), None), TokenFiles(Path("b"), None)]


@pytest.mark.parametrize("files", [("0:a",), ("-1:a",), ("nan:a",), ("inf:a",), ("1:a", "b")])
def test_weights_that_cannot_be_are_a_mistake_of_the_settings(files: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"files: "):
        GptIndexed(files=files)


@pytest.fixture
def folder(write_tokens: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: pairs of 30, 10 and 20 tokens in ``web``, one of 5 beside it, and other files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web").mkdir()
    for name, size in (("web/b", 30), ("web/a.v1", 10), ("web/c, d", 20), ("books", 5)):
        write_tokens([size], name)
    for name in ("web/tokenizer.json", "web/.e.idx", "web/half.bin"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


WEB = ["web/a.v1", "web/b", "web/c, d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("web", WEB),
        ("web/*.idx", WEB),
        ("we?", WEB),
        ("web/[a-c]*", WEB),
        ("web/[ab]", ["web/b"]),
        ("**/*.idx", ["books", *WEB]),
        ("web/c, d", WEB[2:]),
        ("[b]ooks.bin", ["books"]),
    ],
)
def test_folders_and_patterns_name_pairs_in_order(folder: Path, text: str, expected: list[str]) -> None:
    assert [str(source.prefix) for source in parse([text])] == expected


def test_a_name_may_look_like_a_pattern(write_tokens: Callable[..., str], tmp_path: Path) -> None:
    for name in ("part[1]", "part1"):
        write_tokens([3], name)
    assert [source.prefix.name for source in parse([f"{tmp_path}/part[1]"])] == ["part[1]"]
    assert [source.prefix.name for source in parse([f"{tmp_path}/part[1].bin"])] == ["part[1]"]


def test_the_weight_of_a_folder_is_divided_by_tokens(folder: Path) -> None:
    assert parse(["3:web", "1:books"]) == [
        TokenFiles(Path(name), weight) for name, weight in zip([*WEB, "books"], [0.5, 1.5, 1.0, 1.0], strict=True)
    ]


def test_a_list_names_files_and_weights(folder: Path) -> None:
    (folder / "lists").mkdir()
    (folder / "lists/all.txt").write_text("# all\n0.75 ../web/*.idx  # three\n0.25:../books\n")
    sources = parse(["@lists/all.txt"])
    assert [source.weight for source in sources] == [0.125, 0.375, 0.25, 0.25]
    assert [source.key for source in sources] == [f"{folder}/{name}" for name in [*WEB, "books"]]


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        (["none/*.bin"], ["none/*.bin: no token files (.bin and .idx) match this pattern (looked for from {folder})"]),
        (["empty"], ["empty: there are no token files (.bin and .idx) in this folder; name another (looked for from "]),
        (["{folder}/empty"], ["{folder}/empty: there are no token files (.bin and .idx) in this folder; name another"]),
        (["web", "web/../web/b.bin"], ["web/../web/b: named by 'web' and by 'web/../web/b.bin'; name it once"]),
        (["@{folder}/list"], ["{folder}/list, line 2: gone: there are no such token files (.bin and .idx)",
                     "{folder}/list, line 4: empty: there are no token files (.bin and .idx) in this folder",
                     "{folder}/list, line 5: no*: no token files (.bin and .idx) match this pattern",
                     "{folder}/books: named by '{folder}/list, line 1: books' and by '{folder}/list, line 6: b*'"]),
        (["0.3:books", "@{folder}/list"], ["data.files: some have a weight and some have none, got books, "]),
    ],
)  # fmt: skip
def test_every_problem_is_named_with_its_place(folder: Path, files: list[str], problems: list[str]) -> None:
    (folder / "list").write_text("books\ngone\nweb\nempty\nno*\nb*\n")
    with pytest.raises(DataError) as error:
        parse([name.format(folder=folder) for name in files])
    lines = str(error.value).splitlines()
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(problem.format(folder=folder))


def test_hosts_that_see_other_files_are_told_apart(folder: Path, write_tokens: Callable[..., str]) -> None:
    (folder / "list").write_text("web/*.bin\n")
    words = ("data.files=@list", "data.phases=[{at: 8, files: ['1:b*']}]")
    job = resolve(load(), "megatron_gpt:tiny", words)
    first = identity_of_process(job, 1, LIBRARIES, VARIABLES)["data"]
    write_tokens([7], "web/z")
    write_tokens([6], "books")
    second = identity_of_process(job, 1, LIBRARIES, VARIABLES)["data"]
    assert [line.partition(": ")[2].partition(":")[0] for line in differences([first, second], ["x", "y"])] == [
        "books.bin",
        "books.idx",
        "web/z.bin",
    ]


def test_splits_cover_everything_once() -> None:
    assert split_ranges(1000, (969, 30, 1)) == {"train": range(969), "valid": range(969, 999), "test": range(999, 1000)}
    assert split_ranges(7, (1,)) == {"train": range(7), "valid": range(0), "test": range(0)}
    assert split_ranges(0, (9, 1)) == {"train": range(0), "valid": range(0), "test": range(0)}


@pytest.mark.peer
@pytest.mark.parametrize("shares", [(969, 30, 1), (1, 1, 1), (0.7, 0.2, 0.1), (99, 1, 0), (1,), (0, 5, 5)])
def test_splits_are_cut_where_megatron_core_cuts(shares: tuple[float, ...]) -> None:
    peer = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_config")
    matrix = peer.convert_split_vector_to_split_matrix(peer.parse_and_normalize_split(",".join(map(str, shares))))
    for count in [*range(60), 999, 1000, 1001, 12345, 10_000_001]:
        theirs = [
            range(0) if ends is None else range(*(int(round(end * float(count))) for end in ends))  # noqa: RUF046
            for ends in matrix
        ]
        for ours, expected in zip(split_ranges(count, shares).values(), theirs, strict=True):
            assert ours == expected
