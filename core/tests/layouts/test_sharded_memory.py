"""Sharded layouts on a CPU give the memory of gathered blocks back."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
import torch

from recipe_core.engine import protocol as engines
from recipe_core.settings.job import resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.building.build import build_parallel, build_run

BLOCKS, BYTES = 32, 8 << 20


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def kept_after_freeing(layout: str) -> int:
    """Bytes that a process still has of large tensors that were freed, between small ones that stay."""
    job = resolve(toy.registry(), "toy:tiny", [f"layout={layout}", "train.device=cpu"], 2)
    with engines.start(job.train) as engine:
        build_parallel(job, build_run(job, engine, None), engine)
        before = resident()
        large, small = [], []
        for _ in range(BLOCKS):
            large.append(torch.ones(BYTES // 4))
            small.append(torch.ones(1 << 12))
        assert resident() - before > BLOCKS * BYTES // 2
        large.clear()
        return resident() - before


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
@pytest.mark.parametrize("layout", ["fsdp", "zero1"])
def test_freed_blocks_go_back_to_the_system(layout: str) -> None:
    assert max(spawn(kept_after_freeing, 2, layout)) < 4 * BYTES
