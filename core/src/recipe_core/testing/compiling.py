"""Graphs that torch.compile traces of a run on an accelerator, counted on any machine.

The device is :data:`recipe_core.testing.waiting.HIDDEN`; no code is generated for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from recipe_core.engine import protocol
from recipe_core.ops.fusing import fuse
from recipe_core.settings.job import Job
from recipe_core.testing.waiting import HiddenEngine
from recipe_core.train.run import run


@dataclass(frozen=True)
class GraphCounts:
    """Counts of TorchDynamo."""

    graphs: int
    """Unique graphs."""
    breaks: Mapping[str, int] = field(default_factory=dict)
    """Graph breaks, by reason."""
    given_up: int = 0
    """Functions that reached the recompile limit."""


class _Engine(HiddenEngine):
    """Traces and differentiates graphs, and runs them without code generation."""

    def compile_options(self) -> dict[str, Any]:
        """Return the options of torch.compile: no code generation."""
        return {"backend": "aot_eager"}


def traced(job: Job, out: Path) -> GraphCounts:
    """Run all steps of ``job``, which compiles, on the hidden device, without checkpoints; return the counts."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    engine = _Engine(job.train.timeout)
    with patch.object(protocol, "start", lambda *_: engine):
        run(job, out, dry_run=True)
    fuse(None)
    counts = GraphCounts(
        counters["stats"]["unique_graphs"], dict(counters["graph_break"]), sum(counters["recompile_limit"].values())
    )
    torch._dynamo.reset()
    return counts
