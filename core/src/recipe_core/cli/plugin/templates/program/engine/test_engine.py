"""The engine sets up the process and leaves it as it was; its runs are those of PyTorch's own engine."""

from pathlib import Path

import pytest
import torch
from recipe_core import Train
from recipe_core.testing import run_tiny

from recipe_new_plugin.engine import build
from recipe_new_plugin.plugin import Threads, problems


@pytest.mark.parametrize("fails", [False, True])
def test_it_sets_threads_and_restores_them(fails: bool) -> None:
    before = torch.get_num_threads()
    try:
        with build(Threads(threads=before + 1), Train(device="cpu"), None) as engine:
            assert engine.counters() == {"engine_threads": before + 1}
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert torch.get_num_threads() == before


def test_other_devices_are_refused() -> None:
    assert list(problems(Threads(), Train(device="cpu"), None, 1)) == []
    assert list(problems(Threads(), Train(device="cuda"), None, 1)) == [
        "train.device: this engine computes on the CPU, and not on 'cuda'"
    ]


def test_losses_are_those_of_the_native_engine(tmp_path: Path) -> None:
    own = run_tiny("new_plugin", tmp_path / "own", "train.device=cpu", "engine.threads=1")
    native = run_tiny("new_plugin", tmp_path / "native", "train.device=cpu", "engine=native")
    assert own.column() == native.column()
    assert set(own.column("engine_threads").values()) == {1.0}
