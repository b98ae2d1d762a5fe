"""``train.compile`` block by block under layouts: no breaks in the graphs, and the losses of eager training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from recipe_core.engine.native import NativeEngine
from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.train.start.check import checked_job

WORDS = (
    "train.device=cpu", "train.precision=fp32", "train.steps=3", "train.log_every=1", "train.eval_every=0",
    "train.global_batch=8", "model.layers=4",
)  # fmt: skip


def losses(folder: str, words: tuple[str, ...]) -> tuple[int, dict[str, int], list[float]]:
    """Graphs, breaks and losses of a run whose blocks are compiled as on a device that is no CPU."""
    from torch._dynamo.utils import counters

    from recipe_core.train.run import run

    out = Path(folder) / "run"
    job = checked_job(load(), "megatron_gpt:tiny", (*WORDS, *words), 2, out)
    options: dict[str, Any] = {"backend": "aot_eager"}
    with (
        patch.object(NativeEngine, "compile_options", lambda engine: options),
        patch("recipe_core.train.building.build.compiles_blocks", lambda *_: job.train.compile),
    ):
        run(job, out, dry_run=True)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return counters["stats"]["unique_graphs"], dict(counters["graph_break"]), [row["loss"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [("layout=fsdp",), ("layout=zero1",), ("layout=pp", "layout.pp=2")])
def test_blocks_are_compiled_within_the_layout(layout: tuple[str, ...], tmp_path: Path) -> None:
    compiled, eager = (
        spawn(losses, 2, str(tmp_path / word), (*layout, f"train.compile={word}"))[0] for word in ("true", "false")
    )
    assert eager[:2] == (0, {})
    assert compiled[0] >= 1
    assert compiled[1:] == ({}, eager[2])  # no break, and the same to the last bit
