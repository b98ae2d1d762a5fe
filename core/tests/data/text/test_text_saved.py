"""Folders in the layout of ``save_to_disk`` of Hugging Face's datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the package of recipe-core[arrow]")

from column_files import arrow_stream, read, refusal, table


def save(folder: Path, *shards: list[str], **state: Any) -> Path:
    """Write ``shards`` as datasets 5 does."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(shards):05}.arrow" for number in range(len(shards))]
    for name, texts in zip(names, shards, strict=True):
        arrow_stream(folder / name, table(texts))
    content = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", "_split": None, **state}
    (folder / "state.json").write_text(json.dumps(content, indent=2))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": {"dtype": "string"}}}, indent=2))
    return folder


def test_the_listed_files_in_their_order(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", ["one"], ["two"])
    arrow_stream(folder / "cache-12ab.arrow", table(["left by map"]))
    assert read(folder) == ["one", "two"]
    listed = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in (1, 0)]
    (folder / "state.json").write_text(json.dumps({"_data_files": listed}))
    assert read(folder) == ["two", "one"]
    (folder / "dataset_info.json").unlink()
    assert read(folder) == ["two", "one"]


def test_among_other_inputs(tmp_path: Path) -> None:
    save(tmp_path / "b", ["saved"])
    save(tmp_path / "d" / "deep", ["deep"])
    for name in ("a", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    assert read(tmp_path) == ["a", "saved", "c", "deep"]
    assert read(f"{tmp_path}/[bd]*") == ["saved", "deep"]
    assert read(f"{tmp_path}/b/*.arrow") == ["saved"]


def test_an_empty_set(tmp_path: Path) -> None:
    assert "there is no document in them" in refusal(save(tmp_path / "set", []))


def test_several_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save(tmp_path / split, [split])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert refusal(tmp_path) == (
        f"{tmp_path}: holds the splits of a data set; name those to read ({tmp_path}/train, {tmp_path}/test)"
    )
    assert read(tmp_path / "train") == ["train"]


def test_a_folder_without_a_state(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", ["one"])
    (folder / "state.json").unlink()
    assert refusal(folder) == (
        f"{folder}: has a dataset_info.json but no state.json, which lists the files of a saved data set; save it "
        "again with save_to_disk, or name its .arrow files themselves"
    )
    assert read(folder / "data-00000-of-00001.arrow") == ["one"]


@pytest.mark.parametrize("gone", [[0], [1, 2]])
def test_listed_files_that_are_missing(tmp_path: Path, gone: list[int]) -> None:
    folder = save(tmp_path / "set", ["one"], ["two"], ["three"])
    for number in gone:
        (folder / f"data-0000{number}-of-00003.arrow").unlink()
    more = " and 1 more" if len(gone) > 1 else ""
    missing = f"lists data-0000{gone[0]}-of-00003.arrow{more}, which is not there; copy the whole folder again"
    assert refusal(folder) == f"{folder / 'state.json'}: {missing}"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("{", "is damaged (Expecting property name"),
        ("\udcff", "is damaged ("),
        ("[" * 100_000, "is damaged ("),
        ("[]", "expected a list under '_data_files', as save_to_disk writes it; save the data set again"),
        ('{"_data_files": 3}', "expected a list under '_data_files'"),
        ('{"_data_files": []}', "expected a list under '_data_files'"),
        ('{"_data_files": [3]}', "expected the name of a file in this folder, got None"),
        ('{"_data_files": [{"filename": 3}]}', "expected the name of a file in this folder, got 3"),
        ('{"_data_files": [{"filename": "../a.arrow"}]}', "in this folder, got '../a.arrow'; save the data set again"),
        ('{"_data_files": [{"filename": "a"}], "_indices_data_files": [{}]}', "selected by a file of indices; save"),
    ],
)
def test_a_state_that_cannot_be_used(tmp_path: Path, state: str, expected: str) -> None:
    folder = save(tmp_path / "set", ["one"])
    (folder / "state.json").write_text(state, errors="surrogateescape")
    message = refusal(folder)
    assert message.startswith(f"{folder / 'state.json'}: ")
    assert expected in message


def test_all_problems_of_a_tree_are_gathered(tmp_path: Path) -> None:
    (save(tmp_path / "a", ["one"]) / "state.json").unlink()
    (save(tmp_path / "b", ["one"]) / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(Exception, match="2 problems:"):
        read(tmp_path)
