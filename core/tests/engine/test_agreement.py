"""All ranks fail alike, a result that cannot be pickled stays on its rank, and ranks that differ do not train."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from recipe_core.engine import agreement
from recipe_core.engine.agreement import agree, on_all_ranks, on_each_rank, on_rank_0
from recipe_core.errors import ConfigError, DataError, DiskError, RecipeError
from recipe_core.launch.host import host
from recipe_core.launch.identity import differences, identity
from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.testing.bounds import allowed

HERE = Path("out")


class Two:
    """Rank ``rank`` of two; the other one brings ``other`` to each meeting."""

    world_size = 2

    def __init__(self, rank: int, other: tuple[Any, Any]) -> None:
        self.rank, self.other = rank, other

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other] if self.rank == 0 else [self.other, value]


def test_results_come_in_rank_order() -> None:
    assert on_all_ranks(Two(1, ("first", None)), lambda: "second", HERE) == ["first", "second"]
    assert on_rank_0(Two(1, ("first", None)), lambda: "second", HERE) == "first"
    assert callable(on_each_rank(Two(1, (None, None)), lambda: lambda: 1, HERE))


def test_rank_0_acts_alone() -> None:
    acted: list[int] = []
    on_rank_0(Two(1, (None, None)), lambda: acted.append(1), HERE)
    assert acted == []
    on_rank_0(Two(0, (None, None)), lambda: acted.append(0), HERE)
    assert acted == [0]


def test_the_lowest_rank_that_failed_speaks_for_all() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"^rank 1: odd$"):
        on_all_ranks(Two(0, (None, (DataError, "odd"))), lambda: None, HERE)
    with pytest.raises(DataError, match=r"^odd$"):
        on_all_ranks(Two(1, (None, (DataError, "odd"))), full, HERE)
    with pytest.raises(
        DiskError,
        match=r"^out: cannot be written \(No space left on device\); free some space or choose another folder$",
    ):
        on_all_ranks(Two(0, (None, (DataError, "odd"))), full, HERE)


def test_a_bug_keeps_its_traceback_where_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        on_all_ranks(Two(1, (None, None)), lambda: 1 // 0, HERE)
    with pytest.raises(RecipeError, match=r"^rank 1: ZeroDivisionError: oops$"):
        on_all_ranks(Two(0, (None, (RecipeError, "ZeroDivisionError: oops"))), lambda: None, HERE)


class Pair:
    """One of two ranks that run as threads."""

    world_size = 2

    def __init__(self, rank: int, barrier: threading.Barrier, values: list[Any]) -> None:
        self.rank, self._barrier, self._values = rank, barrier, values

    def gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(60)
        found = list(self._values)
        self._barrier.wait(60)
        return found


def agreed(identities: list[dict[str, dict[str, str]]], outs: list[Path]) -> list[Any]:
    """The result or the error of ``agree`` on each of two ranks."""
    barrier, values = threading.Barrier(2), [None, None]

    def one(rank: int) -> Any:
        try:
            return agree(Pair(rank, barrier, values), identities[rank], lambda: None, outs[rank])
        except RecipeError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


SAME = {"settings": {"train.lr": "0.1", "train.steps": "8"}, "versions": {"package torch": "2.13"}}


def test_ranks_that_agree_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_now", lambda: 1000.0)  # threads that read it seconds apart are no clocks apart
    assert agreed([SAME, SAME], [tmp_path / "new" / "run"] * 2) == [[], []]
    assert list(tmp_path.iterdir()) == []


def test_what_differs_is_named_on_all_ranks(tmp_path: Path) -> None:
    other = {"settings": {"train.lr": "0.1", "train.steps": "6"}, "versions": {}}
    found = agreed([SAME, other], [tmp_path / "run"] * 2)
    name = host()
    for error in found:
        assert type(error) is ConfigError
        assert str(error).splitlines() == [
            "the ranks do not agree, and nothing was computed:",
            f"  - train.steps: 8 on rank 0 ({name}), 6 on rank 1 ({name})",
            f"  - package torch: 2.13 on rank 0 ({name}), not there on rank 1 ({name})",
            "Start all of them with the same line, packages and data",
        ]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_only_rank_0_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_SHOWS_WITHIN", 0.2)
    for error in agreed([SAME, SAME], [tmp_path / "here", tmp_path / "there"]):
        assert type(error) is ConfigError
        assert "not all ranks see what rank 0 writes into it (--out: there on rank 0" in str(error)


def test_clocks_that_are_apart_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([1000.0, 1093.0])
    monkeypatch.setattr(agreement, "_now", lambda: next(clocks))
    name = host()
    line = f"the clocks of {name} and {name} are 93 seconds apart; times in their logs cannot be compared"
    assert agreed([SAME, SAME], [tmp_path / "run"] * 2) == [[line], [line]]


def test_numbers_of_threads_that_differ_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_now", lambda: 1000.0)
    threads = {"first": "8", "second": "4"}
    monkeypatch.setattr(agreement, "_threads", lambda: threads.pop(next(iter(threads))))
    found = agreed([SAME, SAME], [tmp_path / "run"] * 2)
    assert found[0] == found[1]
    assert re.match(r"OMP_NUM_THREADS: [48] on rank 0 \(.*\), [48] on rank 1 \(.*\); on CPUs, other", found[0][0])


def test_ranks_of_a_value_are_counted_in_runs() -> None:
    facts = [{"x": "1"}] * 3 + [{"x": "2"}] + [{"x": "1"}]
    assert differences(facts, list("aabbc")) == ["x: 1 on ranks 0-2, 4 (a, b, c), 2 on rank 3 (b)"]


def test_the_identity_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "curve").write_text("6.9\n")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    job = resolve(toy.registry(), "toy", [f"train.golden={tmp_path / 'curve'}", "train.lr=0.5"])
    found = identity(job, 2, agreement.LIBRARIES, agreement.VARIABLES)
    assert found["settings"]["train.lr"] == "0.5"
    assert found["processes"] == {"number of processes": "2"}
    assert found["versions"]["package recipe-core"] == metadata.version("recipe-core")
    assert "code recipe_core/train/loop.py" in found["code"]
    assert found["data"][f"train.golden: {tmp_path / 'curve'}"].startswith("4 bytes, which begin with ")
    assert found["environment"]["variable NVIDIA_TF32_OVERRIDE"] == "0"
    least = float("inf")
    for _ in range(5):
        began = time.process_time()
        identity(job, 2, agreement.LIBRARIES, agreement.VARIABLES)
        least = min(least, time.process_time() - began)
    assert least < allowed(0.05)  # of the 50 ms that the start may take
