"""Names of submodules and parameters by the patterns of a setting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from recipe_core.errors import ConfigError, did_you_mean


def parameters_of(module: nn.Module, patterns: Iterable[str], setting: str) -> Iterator[nn.Parameter]:
    """Yield the parameters whose name, or that of a submodule with them, matches one of ``patterns``.

    Raises:
        ConfigError: a pattern matches none; ``setting`` names it in the message.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    names = {prefix: None for name in named for prefix in prefixes(name)}
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise ConfigError(unmatched(setting, pattern, list(names), "submodule or parameter"))
        yield from (parameter for name, parameter in named.items() if not matched.isdisjoint(prefixes(name)))


def unmatched(setting: str, pattern: str, names: Collection[str], noun: str) -> str:
    """Return the message for a pattern that matches no name."""
    ends = [name for name in names if name.rpartition(".")[2] == pattern.rpartition(".")[2]]
    hint = did_you_mean(pattern, names) or (f"; did you mean {ends[0]}?" if ends else "")
    shown = list(names)[:5]
    more = f", and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"{setting}: the model has no {noun} {pattern!r}{hint} (there are: {', '.join(shown) or 'none'}{more})"


def prefixes(name: str) -> list[str]:
    """Return the names of all submodules that hold the tensor ``name``, and ``name`` itself."""
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]
