"""The inputs of a submodule with a role: which belong to the residual stream, and which are whole on every rank."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from recipe_core.errors import PluginError, did_you_mean

NAMED = ("split", "sequence", "replicated")
"""Roles that may name their inputs of the stream: ``split(hidden, memory)``."""
_ROLE = re.compile(r"\s*(\w+)\s*(?:\(([\w\s,]+)\)\s*)?")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Change = Callable[[Tensor], Tensor]
Unclear = Callable[[Tensor | None, Tensor], bool]
"""True if another tensor, beside the first if there is one, may be of the stream too."""
Key = str | int
"""Name of an input, or its position if forward has no name for it (``*args``)."""


class NamedRole(NamedTuple):
    """A role as a plan writes it."""

    role: str
    stream: tuple[str, ...]
    """The inputs of the stream; empty if the plan names none."""

    def __str__(self) -> str:
        return f"{self.role}({', '.join(self.stream)})" if self.stream else self.role


def parse_role(text: str) -> NamedRole:
    """Parse ``"split"`` or ``"split(hidden, memory)"``; the role of anything else is ``text`` itself."""
    match = _ROLE.fullmatch(text)
    if match is None:
        return NamedRole(text, ())
    return NamedRole(match[1], tuple(name.strip() for name in (match[2] or "").split(",") if name.strip()))


@dataclass(frozen=True)
class Inputs:
    """The inputs of a submodule, of which some belong to the stream."""

    owner: str
    """The submodule's name, for messages."""
    role: str
    names: tuple[str, ...]
    """Parameters of forward that take positional arguments, in order."""
    stream: tuple[str, ...]
    """Those of the stream, as the plan names them; empty: the first floating-point tensor."""

    @classmethod
    def of(cls, module: nn.Module, owner: str, role: NamedRole) -> Inputs:
        """Read the parameters of forward.

        Raises:
            PluginError: it has none of a name in the plan, or the role names no inputs.
        """
        parameters = _parameters(module)
        names = tuple(name for name, one in parameters.items() if one.kind in _POSITIONAL)
        if role.stream and role.role not in NAMED:
            raise PluginError(
                f"tensor plan: {owner}: {role.role} names inputs ({', '.join(role.stream)}); only {', '.join(NAMED)} "
                "may; fix the plugin"
            )
        if not any(one.kind == inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            for name in role.stream:
                if name not in parameters:
                    raise PluginError(
                        f"tensor plan: {owner}: {role.role} names the input {name}, and forward has none of that name"
                        f"{did_you_mean(name, parameters)} (it takes {', '.join(parameters) or 'nothing'})"
                    )
        return cls(owner, role.role, names, role.stream)

    def map(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], stream: Change, whole: Change,
        unclear: Unclear | None = None,
    ) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
        """Apply ``stream`` to the tensors of the stream, and ``whole`` to all others.

        Tuples, lists and dicts are searched for tensors; whatever else is no tensor passes.

        Args:
            args, kwargs: of forward.
            stream, whole: see above.
            unclear: finds the tensors to refuse if the plan names no inputs.

        Raises:
            PluginError: an input is ``unclear``, or an object has a tensor with a gradient, which is not seen here.
        """
        keys: list[Key] = [self.names[i] if i < len(self.names) else i for i in range(len(args))]
        given: dict[Key, Any] = dict(zip(keys, args, strict=True))
        given.update(kwargs.items())
        own: tuple[Key, ...] = self.stream or self._first(given)
        first = given[own[0]] if own and not self.stream else None

        def change(key: Key, value: Any) -> Any:
            if key in own:
                return stream(value)
            if unclear is not None and not self.stream and unclear(first, value):
                raise self._unclear(own, key)
            return whole(value)

        changed = {key: self._each(key, value, change) for key, value in given.items()}
        return [changed[key] for key in keys], {name: changed[name] for name in kwargs}

    def _each(self, key: Key, value: Any, change: Callable[[Key, Any], Any]) -> Any:
        if isinstance(value, Tensor):
            return change(key, value)

        def leaf(inner: Any) -> Any:
            if isinstance(inner, Tensor):
                return change(key, inner)
            if is_dataclass(inner) and not torch.compiler.is_compiling():
                self._refuse_unseen(key, inner)
            return inner

        return value if value is None else tree_map(leaf, value)

    def _first(self, given: Mapping[Key, Any]) -> tuple[Key, ...]:
        ordered = [*(name for name in self.names if name in given), *given]
        for key in ordered:
            if isinstance(given[key], Tensor) and given[key].is_floating_point():
                return (key,)
        return ()

    def _refuse_unseen(self, key: Key, value: Any) -> None:
        for one in fields(value):
            inner = getattr(value, one.name)
            if isinstance(inner, Tensor) and inner.requires_grad:
                raise PluginError(
                    f"tensor plan: {self.owner}: the input {_described(key)} is a {type(value).__name__} whose "
                    f"{one.name} needs a gradient, and the layout does not look into it; pass the tensor as an input "
                    "of its own"
                )

    def _unclear(self, own: tuple[Key, ...], key: Key) -> PluginError:
        first = f", as {_described(own[0])} is" if own else ""
        both = f'"{self.role}({", ".join(map(str, (*own, key)))})"'
        alone = f', or "{self.role}({own[0]})" if it is whole on every rank' if own else ""
        names = f"Name the inputs that are: {both}{alone}"
        if not all(isinstance(one, str) for one in (*own, key)):
            names = "Give it a name among the parameters of forward, and name those that are in the plan"
        return PluginError(
            f"tensor plan: {self.owner}: with layout.sequence_parallel=true it is not clear whether the input "
            f"{_described(key)} is split along the sequence{first}. {names}; or take layout.sequence_parallel=false"
        )


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # compiled code, which may have no signature
        return {}


def _described(key: Key) -> str:
    return key if isinstance(key, str) else f"number {key + 1}"
