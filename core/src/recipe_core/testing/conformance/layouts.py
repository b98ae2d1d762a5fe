"""Checks of a layout: its mesh, and training with the weights of one process."""

from __future__ import annotations

import math

from recipe_core.hooks.specs import Layout
from recipe_core.testing.checkpoints import tensors
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.testing.conformance.toy_runs import train_toy

_NO_DROPOUT = "model.dropout=0"
_CLOSE = 1e-6


def mesh(plugin: Plugin, spec: Layout) -> str:
    """Check that the axes of the mesh multiply to the number of processes, and that one of them is ``dp``."""
    axes_by_count = _supported(spec, (1, 2, 4, 8))
    for processes, axes in axes_by_count.items():
        if "dp" not in axes or math.prod(axes.values()) != processes:
            raise FailedCheck(f"axes({processes}) gives {axes}; expected sizes whose product is {processes}, with 'dp'")
    if not axes_by_count:
        raise FailedCheck("axes() refuses 1, 2, 4 and 8 processes")
    return f"{', '.join(map(str, axes_by_count))} processes"


def trains_alike(plugin: Plugin, spec: Layout) -> str:
    """Check that four steps of the core's toy under the layout give the weights of one process."""
    axes_by_count = _supported(spec, (1, 2))
    if any(axes.keys() - {"dp"} for axes in axes_by_count.values()):
        raise SkippedCheck("it divides layers or blocks, for which the core's toy has no plan")
    folder = plugin.folder / "toy" / spec.name
    train_toy(plugin.module, 1, folder / "alone", "layout=single", _NO_DROPOUT)
    alone = tensors(folder / "alone")
    for processes in axes_by_count:
        out = folder / str(processes)
        train_toy(plugin.module, processes, out, f"layout={spec.name}", _NO_DROPOUT)
        weights = tensors(out)
        apart = max(float((weights[name].float() - value.float()).abs().max()) for name, value in alone.items())
        if not apart <= _CLOSE:
            raise FailedCheck(
                f"on {processes} processes a weight or a state of the optimizer is {apart:.1e} off that of one process "
                "after four steps; are gradients averaged over the data-parallel ranks, once a step?"
            )
    return f"the toy on {' and '.join(map(str, axes_by_count))} processes, within {_CLOSE:.0e}"


def _supported(spec: Layout, counts: tuple[int, ...]) -> dict[int, dict[str, int]]:
    axes_by_count = {}
    for processes in counts:
        try:
            axes_by_count[processes] = spec.config().axes(processes)
        except ValueError:  # the layout refuses this number
            continue
    return axes_by_count
