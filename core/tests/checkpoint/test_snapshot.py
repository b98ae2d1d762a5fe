"""A background save writes a snapshot of the state while training continues, without a copy of the whole state."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe_core.checkpoint.lazy import Lazy
from recipe_core.checkpoint.saving.background import Saver
from recipe_core.checkpoint.saving.snapshot import Snapshot
from recipe_core.engine.memory import available_memory
from recipe_core.engine.staging import to_host
from recipe_core.errors import CheckpointError
from recipe_core.settings.fill import flat


def state_of(value: float = 0.0, count: int = 3) -> dict[str, Any]:
    weights = {f"w{number}": torch.full((4, 4), value + number) for number in range(count)}
    moments = {name: {"exp_avg": weight + 10, "step": torch.tensor(1.0)} for name, weight in weights.items()}
    return {"model": {**weights, "buffer": torch.zeros(2)}, "optimizer": {"state": moments}, "progress": {"step": 1}}


def values(state: dict[str, Any]) -> dict[str, Any]:
    return {name: leaf.tolist() if isinstance(leaf, Tensor) else leaf for name, leaf in flat(state)}


def change(state: dict[str, Any]) -> None:
    for _, leaf in flat(state):
        if isinstance(leaf, Tensor):
            leaf.add_(1)


def never() -> bool:
    return False


def test_what_is_read_before_and_after_the_update_is_as_it_was() -> None:
    state, wanted = state_of(), values(state_of())
    snapshot = Snapshot(state)
    lazy = dict(flat(snapshot.lazy(state)))
    early = lazy["model.w0"].read()
    snapshot.copy_unread(never)
    change(state)
    assert early.tolist() == wanted["model.w0"]
    later = {name: leaf.read().tolist() for name, leaf in lazy.items() if isinstance(leaf, Lazy) and name != "model.w0"}
    assert later == {name: wanted[name] for name in later}
    assert len(later) == 8
    assert lazy["model.buffer"] is state["model"]["buffer"]  # which forward may change: for the caller to copy


def test_only_what_is_left_is_copied() -> None:
    state = state_of()
    snapshot = Snapshot(state)
    lazy = [leaf for _, leaf in flat(snapshot.lazy(state)) if isinstance(leaf, Lazy)]
    for leaf in lazy[:-1]:
        leaf.read()
    snapshot.copy_unread(never)
    assert len(snapshot._copies) == 1
    assert not snapshot._live


def test_where_memory_is_short_the_update_waits_for_the_reader() -> None:
    state = state_of()
    snapshot = Snapshot(state)
    lazy = [leaf for _, leaf in flat(snapshot.lazy(state)) if isinstance(leaf, Lazy)]
    asked = threading.Event()

    def memory() -> int:
        asked.set()
        return 100

    def read() -> None:
        assert asked.wait(20)
        for leaf in lazy:
            leaf.read()

    reader = threading.Thread(target=read)
    reader.start()
    snapshot.copy_unread(never, memory)
    reader.join(20)
    assert not snapshot._copies


def test_a_save_that_is_over_holds_up_nothing() -> None:
    snapshot = Snapshot(state_of())
    snapshot.copy_unread(lambda: True, lambda: 0)
    assert not snapshot._copies


def test_a_change_that_is_no_step_of_the_optimizer_is_no_silent_mixture() -> None:
    state = state_of()
    snapshot = Snapshot(state)
    lazy = dict(flat(snapshot.lazy(state)))
    for name in ("w1", "w2"):
        state["model"][name].mul_(2)
    lazy["model.w0"].read()
    with pytest.raises(
        CheckpointError, match=r"shape \[4, 4\] was changed while it was being saved.*checkpoint=single"
    ):
        lazy["model.w1"].read()
    with pytest.raises(CheckpointError, match="was changed"):
        snapshot.copy_unread(never)


class Reading:
    """Fake checkpoints: reads every tensor, each when it is released."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.found: dict[str, Any] = {}

    def require_finite(self, step: int, state: dict[str, Any]) -> None:
        """Accept every state."""

    def save(self, step: int, state: dict[str, Any], val_loss: float | None) -> Path:
        for name, leaf in flat(state):
            assert self.go.acquire(timeout=60)
            self.found[name] = leaf.read().tolist() if isinstance(leaf, Lazy) else leaf
        return Path()


@pytest.mark.parametrize("before", [0, 4, 30])
def test_a_saver_writes_the_state_of_its_step(before: int) -> None:
    copied: list[int] = []

    def counted(some: Sequence[Tensor]) -> list[Any]:
        copied.append(len(some))
        return to_host(some)

    slow, state = Reading(), state_of()
    with Saver(slow, background=True, to_host=counted) as saver:  # type: ignore[arg-type]
        saver.save(1, state, None)
        for _ in range(before):
            slow.go.release()
        saver.before_update()
        change(state)
        for _ in range(30):
            slow.go.release()
        saver.wait()
        saver.before_update()
    assert {name: leaf.tolist() if isinstance(leaf, Tensor) else leaf for name, leaf in slow.found.items()} == values(
        state_of()
    )
    assert copied == [1]  # the buffer alone


def test_memory_that_can_be_had(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24000 kB\nMemAvailable:   10000 kB\n")
    assert available_memory(meminfo, tmp_path) == 10_240_000
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 1000\n")
    (tmp_path / "memory.current").write_text("5000")
    (tmp_path / "memory.max").write_text("max")
    assert available_memory(meminfo, tmp_path) == 10_240_000
    (tmp_path / "memory.max").write_text("10000\n")
    assert available_memory(meminfo, tmp_path) == 6000
    assert available_memory(tmp_path / "none", tmp_path) is None
