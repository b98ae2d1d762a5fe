"""Number of times shards are opened to read their shapes, and detection of changed shards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from recipe_bert_dp.data import heads
from recipe_bert_dp.data.facts import check, facts
from recipe_bert_dp.settings import BertHdf5
from recipe_core import DataError

COUNT = heads.MANY + 3


@pytest.fixture
def folder(tmp_path: Path, write_numbered: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of many shards of 5 rows, and a cache of its own."""
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    for number in range(COUNT):
        write_numbered(tmp_path / "shards" / f"part{number:03}.hdf5", 5 * number, 5)
    return tmp_path / "shards"


@pytest.fixture
def opens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Number of times each shard was opened."""
    counts: Counter[str] = Counter()

    class Counting(h5py.File):  # type: ignore[misc]
        def __init__(self, path: Path, *args: Any) -> None:
            counts[Path(path).name] += 1
            super().__init__(path, *args)

    monkeypatch.setattr(h5py, "File", Counting)
    return counts


def settings(folder: Path) -> BertHdf5:
    return BertHdf5(files=(str(folder),), sequence=8, max_predictions=1)


def another_process() -> None:
    heads._cache.clear()


def test_the_processes_of_a_run_open_each_shard_once(folder: Path, opens: Counter[str]) -> None:
    first = check(settings(folder), "training")
    for _ in range(3):
        another_process()
        assert facts(settings(folder)).train_samples == 5 * COUNT
        again = check(settings(folder), "training")
        assert [(shape, shape.chunk) for shape in again.values()] == [(s, s.chunk) for s in first.values()]
    assert opens == {f"part{number:03}.hdf5": 1 for number in range(COUNT)}


def test_few_shards_are_opened_once_in_a_process(folder: Path, opens: Counter[str], tmp_path: Path) -> None:
    for path in sorted(folder.iterdir())[3:]:
        path.unlink()
    for _ in range(2):
        check(settings(folder), "training")
    assert set(opens.values()) == {1}
    another_process()
    check(settings(folder), "training")
    assert set(opens.values()) == {2}
    assert not (tmp_path / "cache").exists()


def test_a_shard_that_changes_is_opened_again(
    folder: Path, opens: Counter[str], write_numbered: Callable[..., int]
) -> None:
    check(settings(folder), "training")
    opens.clear()
    write_numbered(folder / "part001.hdf5", 0, 7)
    another_process()
    assert facts(settings(folder)).train_samples == 5 * COUNT + 2
    assert opens["part001.hdf5"] == 2  # written, and read
    content = (folder / "part002.hdf5").read_bytes()
    (folder / "part002.hdf5").write_bytes(b"x" * len(content))
    (folder / "part003.hdf5").write_bytes(content[:-100])
    for _ in range(2):  # damage is reported each time
        another_process()
        with pytest.raises(DataError) as caught:
            check(settings(folder), "training")
        assert [line.split(": ")[0][-12:] for line in str(caught.value).splitlines()] == [
            "part002.hdf5", "part003.hdf5",
        ]  # fmt: skip
    (folder / "part002.hdf5").unlink()
    (folder / "part003.hdf5").unlink()
    assert facts(settings(folder)).train_samples == 5 * (COUNT - 2) + 2


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 1}', '{"a": {"b": 1}}', '{"a": [1, 2]}', "words"])
def test_a_damaged_cache_is_written_anew(folder: Path, opens: Counter[str], tmp_path: Path, content: str) -> None:
    check(settings(folder), "training")
    (store,) = (tmp_path / "cache" / "bert_hdf5").iterdir()
    lines = store.read_text()
    for changed in (content, json.dumps({name: [*line[:-1], "3"] for name, line in json.loads(lines).items()})):
        store.write_text(changed)
        another_process()
        opens.clear()
        check(settings(folder), "training")
        assert set(opens.values()) == {1}
        assert store.read_text() == lines


def test_a_cache_that_cannot_be_written_is_ignored(folder: Path, opens: Counter[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert facts(settings(folder)).train_samples == 5 * COUNT
    assert facts(settings(folder)).train_samples == 5 * COUNT
    assert set(opens.values()) == {1}
