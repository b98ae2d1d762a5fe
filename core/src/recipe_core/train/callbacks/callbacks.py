"""All callbacks of a run, as the loop calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from recipe_core.errors import PluginError, RecipeError
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.loop import CallbackSpec
from recipe_core.hooks.target import as_plugin_error
from recipe_core.train.callbacks.callback import Callback, CallbackRun

MOMENTS = (
    "on_start", "global_batch", "before_step", "before_optimizer", "after_step", "metrics", "evaluations",
    "after_evaluation", "before_save", "on_end",
)  # fmt: skip
"""The methods of :class:`Callback` that the loop calls, besides those for its state."""
State = dict[str, Any]


@dataclass
class Callbacks:
    """All callbacks of a run, in the order of ``train.callbacks``.

    A moment that no callback overrides costs a look into a dict. An error names the callback; unless the contribution
    says ``fatal=False``, it ends the run.
    """

    reason: str = ""
    """Why a callback ends the run; empty: none does."""
    _open: dict[str, tuple[CallbackSpec, Callback]] = field(default_factory=dict)
    _at: dict[str, list[tuple[CallbackSpec, Callable[..., Any]]]] = field(default_factory=dict)
    """The callbacks that override each moment, with their methods."""
    _warn: Callable[[str], None] = field(default=lambda text: None)

    def build(self, parts: Sequence[Part[CallbackSpec]], run: CallbackRun, warn: Callable[[str], None]) -> None:
        """Build the callbacks ``parts``; ``warn`` takes a message about one that failed and is not fatal.

        Raises:
            PluginError: one raises, or is no :class:`Callback`.
        """
        self._warn = warn
        for part in parts:
            spec = part.spec
            own = replace(run, stop=partial(self._stop, spec.name))
            with as_plugin_error(_code(spec, "build")):
                callback = part.build(part.config, own)
            if not isinstance(callback, Callback):
                raise PluginError(
                    f"{_code(spec, 'build')} returned {type(callback).__name__}; expected a recipe_core.Callback"
                )
            self._open[spec.name] = spec, callback
            for moment in MOMENTS:
                if getattr(type(callback), moment) is not getattr(Callback, moment):
                    self._at.setdefault(moment, []).append((spec, getattr(callback, moment)))

    def _stop(self, name: str, reason: str) -> None:
        self.reason = self.reason or f"{name}: {reason}"  # the first one is kept

    def at(self, moment: str, *arguments: Any) -> None:
        """Call ``moment`` of each callback that overrides it."""
        for spec, method in self._at.get(moment, ()):
            with self._blamed(spec, moment):
                method(*arguments)

    def global_batch(self, consumed: int) -> int | None:
        """Return what the first callback with an answer says."""
        for spec, method in self._at.get("global_batch", ()):
            with self._blamed(spec, "global_batch"):
                answer: int | None = method(consumed)
                if answer is not None:
                    return answer
        return None

    def metrics(self, row: Mapping[str, float]) -> dict[str, float]:
        """Return the columns that callbacks add to ``row``.

        Raises:
            PluginError: one of them is in the row already, or is no number.
        """
        columns: dict[str, float] = {}
        for spec, method in self._at.get("metrics", ()):
            with self._blamed(spec, "metrics"):
                found = method(row["step"])
                if not isinstance(found, Mapping):
                    raise PluginError(f"{_code(spec, 'metrics')} returned {found!r:.60}; expected a dict of numbers")
                for name, value in found.items():
                    if name in row or name in columns:
                        raise PluginError(f"{_code(spec, 'metrics')} returned {name!r}, which is another column's name")
                    columns[str(name)] = float(value)
        return columns

    def evaluations(self) -> dict[str, AbstractContextManager[Any]]:
        """Return further evaluations by name, with the contexts that they run in."""
        found: dict[str, AbstractContextManager[Any]] = {}
        for spec, method in self._at.get("evaluations", ()):
            with self._blamed(spec, "evaluations"):
                own = method()
                if twice := found.keys() & own.keys():
                    raise PluginError(
                        f"{_code(spec, 'evaluations')} returned {min(twice)!r}, which another one has, too"
                    )
                found |= own
        return found

    def state(self) -> dict[str, State]:
        """Return the states of the callbacks that save one, by name."""
        states: dict[str, State] = {}
        for name, (spec, callback) in self._open.items():
            if spec.saves:
                with as_plugin_error(_code(spec, "state")):
                    states[name] = callback.state()
        return states

    def load_state(self, states: Mapping[str, State]) -> None:
        """Have callbacks continue from ``states``."""
        for name, state in states.items():
            spec, callback = self._open[name]
            with as_plugin_error(_code(spec, "load_state")):
                callback.load_state(state)

    @contextmanager
    def _blamed(self, spec: CallbackSpec, moment: str) -> Iterator[None]:
        try:
            with as_plugin_error(_code(spec, moment)):
                yield
        except RecipeError as error:
            if spec.fatal:
                raise
            self._warn(f"{error}; training goes on without it")
            self._at = {name: [one for one in some if one[0] is not spec] for name, some in self._at.items()}


def _code(spec: CallbackSpec, method: str) -> str:
    return f"callback {spec.name!r}: {method}"
