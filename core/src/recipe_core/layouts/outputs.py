"""Parts of a model's output by name, for losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from recipe_core.errors import PluginError
from recipe_core.hooks.specs import Model
from recipe_core.hooks.specs.loop import LossSpec
from recipe_core.layouts.parallel import Batch, Loss


def output_of(output: Any, name: str) -> Any:
    """Return the part ``name`` of a model's output.

    A key of a mapping; a field of a dataclass or a named tuple, an attribute of another object; the output itself if it
    is a tensor. A loss of another plugin gets a tuple with the names of :attr:`recipe_core.Model.outputs`, in order.

    Raises:
        PluginError: the output has no such part, or it is None.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        value = output.get(name)
    elif isinstance(output, (tuple, list)):
        value = dict(zip(_names(output), output, strict=False)).get(name)
    else:
        value = getattr(output, name, None)
    if value is None:
        raise PluginError(f"the output of the model has no {name!r}: it is {_described(output)}")
    return value


def require_outputs(output: Any, model: Model) -> Any:
    """Return ``output`` with the names that ``model`` declares, if it is a tuple without names.

    Raises:
        PluginError: the output has not all that the model declares.
    """
    if not model.outputs:
        return output
    declared = f"model {model.name!r} declares the outputs {', '.join(model.outputs)}, and its output is"
    if isinstance(output, Tensor):
        if len(model.outputs) > 1:
            raise PluginError(f"{declared} a tensor, which has one name; fix the plugin")
        return output
    if isinstance(output, (tuple, list)) and not _names(output):
        if len(output) != len(model.outputs):
            raise PluginError(f"{declared} {_described(output)}, of {len(output)}; fix the plugin")
        return NamedOutput(output, model.outputs)
    if lacking := _lacking(output, model.outputs):
        raise PluginError(f"{declared} {_described(output)}, without {', '.join(lacking)}; fix the plugin")
    return output


def with_output_names(loss: Loss, spec: LossSpec, model: Model) -> Loss:
    """Wrap a ``loss`` of ``spec`` so that it gets an output with names, and all that it needs."""
    if not model.outputs and not spec.needs:
        return loss

    def named(output: Any, batch: Batch) -> Mapping[str, Tensor]:
        output = require_outputs(output, model)
        if lacking := _lacking(output, spec.needs):
            raise PluginError(
                f"loss {spec.name!r} needs {', '.join(lacking)} of the output of model {model.name!r}, which is "
                f"{_described(output)}; choose a model and a loss that belong together"
            )
        return loss(output, batch)

    return named


class NamedOutput(tuple[Any, ...]):
    """A tuple whose elements have names."""

    names: tuple[str, ...]

    def __new__(cls, values: Iterable[Any], names: tuple[str, ...]) -> NamedOutput:
        output = super().__new__(cls, values)
        output.names = names
        return output


def _lacking(output: Any, names: Iterable[str]) -> list[str]:
    names = list(names)
    if isinstance(output, Tensor):
        return names[1:]
    lacking = []
    for name in names:
        try:
            output_of(output, name)
        except PluginError:
            lacking.append(name)
    return lacking


def _names(output: Any) -> tuple[str, ...]:
    if isinstance(output, Mapping):
        return tuple(output)
    if isinstance(output, tuple):
        return output.names if isinstance(output, NamedOutput) else getattr(output, "_fields", ())
    if is_dataclass(output):
        return tuple(field.name for field in fields(output))
    return tuple(getattr(output, "__dict__", ()))


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return "a tensor"
    kind = "tuple" if isinstance(output, NamedOutput) else type(output).__name__
    names = _names(output)
    return f"a {kind} with {', '.join(map(str, names))}" if names else f"a {kind} without names"
