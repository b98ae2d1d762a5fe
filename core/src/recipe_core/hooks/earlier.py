"""Earlier names of methods, which plugins may define and call until API 2."""

from __future__ import annotations

from collections.abc import Mapping

PARALLEL = {
    "follow": "attach_optimizer",
    "settle": "on_state_loaded",
    "with_others": "with_placeholders",
    "own": "local_state",
    "give_up": "discard_step",
}
"""Methods of :class:`recipe_core.Parallel`: earlier name -> name."""
ENGINE = {"fillable": "load_target", "stacked": "stack_on_host", "total": "sum_counts", "side": "host_ranks"}
"""Methods of :class:`recipe_core.Engine`: earlier name -> name."""


def add_both_names(cls: type, renamed: Mapping[str, str]) -> None:
    """Make every method of ``renamed`` that ``cls`` or a base class defines available under both of its names.

    A class that defines one name gets the other, too. So an override takes effect under either name, and ``super()``
    finds the definition of the base class.
    """
    for base in cls.__mro__:
        defined = vars(base)
        for earlier, name in renamed.items():
            if earlier in defined and name not in defined:
                setattr(base, name, defined[earlier])
            elif name in defined and earlier not in defined:
                setattr(base, earlier, defined[name])
