"""Tensor-parallel groups and nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from recipe_core.cli.check.target import Target, warnings


@pytest.mark.parametrize(
    ("axes", "nodes", "each", "warning"),
    [
        ({"dp": 2, "tp": 4}, 2, 4, None),
        ({"dp": 2, "tp": 4}, 1, 8, None),
        ({"dp": 4}, 2, 2, None),
        ({"tp": 8}, 2, 4, "1 of 1 tensor-parallel groups of 8 cross nodes of 4 processes"),
        ({"dp": 3, "tp": 4}, 2, 6, "1 of 3 tensor-parallel groups of 4 cross nodes of 6 processes"),
        ({"tp": 2, "dp": 4}, 2, 4, "4 of 4 tensor-parallel groups of 2 cross nodes"),  # strided ranks
        ({"pp": 2, "dp": 2, "tp": 2}, 4, 2, None),
    ],
)
def test_groups_that_cross_nodes_are_counted(axes: dict[str, int], nodes: int, each: int, warning: str | None) -> None:
    job = SimpleNamespace(axes=lambda world_size: axes)
    found = list(warnings(job, Target(nodes=nodes, processes_per_node=each)))  # type: ignore[arg-type]
    assert len(found) == (warning is not None)
    assert warning is None or warning in found[0]
