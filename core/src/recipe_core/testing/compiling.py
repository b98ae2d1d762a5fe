"""Graphs that the compiler makes of a run on a device that is no CPU, found on any machine.

The device is :data:`recipe_core.testing.waiting.HIDDEN`; no code is generated for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from recipe_core.engine import protocol
from recipe_core.settings.job import Job
from recipe_core.testing.waiting import HiddenEngine
from recipe_core.train.run import run


@dataclass(frozen=True)
class Traced:
    """Counts of the compiler's front end."""

    graphs: int
    """Different graphs."""
    breaks: Mapping[str, int] = field(default_factory=dict)
    """Places where Python had to go on between two graphs, by their reason."""
    given_up: int = 0
    """Functions that were compiled so often that the compiler left them alone."""


class _Engine(HiddenEngine):
    """Traces and differentiates graphs; runs them as they are."""

    def compile_options(self) -> dict[str, Any]:
        """No code is generated."""
        return {"backend": "aot_eager"}


def traced(job: Job, out: Path) -> Traced:
    """Run all steps of ``job``, which compiles, on the hidden device, without checkpoints."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    engine = _Engine(job.train.timeout)
    with patch.object(protocol, "start", lambda *_: engine):
        run(job, out, dry_run=True)
    found = Traced(
        counters["stats"]["unique_graphs"], dict(counters["graph_break"]), sum(counters["recompile_limit"].values())
    )
    torch._dynamo.reset()
    return found
