"""Checks of a layout: its mesh, and that a model trains under it as in one process."""

from __future__ import annotations

import math

from recipe_core.hooks.specs import Layout
from recipe_core.testing.checkpoints import tensors
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.testing.conformance.toy_runs import train_toy

_STILL = "model.dropout=0"
_CLOSE = 1e-6


def mesh(plugin: Plugin, spec: Layout) -> str:
    """The axes of the mesh multiply to the number of processes, and one of them is ``dp``."""
    fitting = _fitting(spec, (1, 2, 4, 8))
    for processes, axes in fitting.items():
        if "dp" not in axes or math.prod(axes.values()) != processes:
            raise FailedCheck(f"axes({processes}) gives {axes}; expected sizes whose product is {processes}, with 'dp'")
    if not fitting:
        raise FailedCheck("axes() refuses 1, 2, 4 and 8 processes")
    return f"{', '.join(map(str, fitting))} processes"


def trains_alike(plugin: Plugin, spec: Layout) -> str:
    """Four steps under the layout give the core's toy the weights that one process gives it."""
    fitting = _fitting(spec, (1, 2))
    if any(axes.keys() - {"dp"} for axes in fitting.values()):
        raise SkippedCheck("it divides layers or blocks, for which the core's toy has no plan")
    folder = plugin.folder / "toy" / spec.name
    train_toy(plugin.module, 1, folder / "alone", "layout=single", _STILL)
    alone = tensors(folder / "alone")
    for processes in fitting:
        out = folder / str(processes)
        train_toy(plugin.module, processes, out, f"layout={spec.name}", _STILL)
        found = tensors(out)
        apart = max(float((found[name].float() - value.float()).abs().max()) for name, value in alone.items())
        if not apart <= _CLOSE:
            raise FailedCheck(
                f"on {processes} processes a weight or a state of the optimizer is {apart:.1e} off that of one process "
                "after four steps; are gradients averaged over the data-parallel ranks, once a step?"
            )
    return f"the toy on {' and '.join(map(str, fitting))} processes, within {_CLOSE:.0e}"


def _fitting(spec: Layout, counts: tuple[int, ...]) -> dict[int, dict[str, int]]:
    """The axes for those numbers of processes that the layout takes."""
    fitting = {}
    for processes in counts:
        try:
            fitting[processes] = spec.config().axes(processes)
        except ValueError:  # as a user would read it
            continue
    return fitting
