"""Submodules whose names match a pattern."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn


def matching(module: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """Submodules whose name matches ``pattern`` (``"blocks.*"``; a star stands for one level), in their order.

    Empty if none does, or if ``pattern`` is empty.
    """
    wanted = pattern.split(".")
    return {
        name: submodule
        for name, submodule in module.named_modules()
        if name and len(parts := name.split(".")) == len(wanted) and all(map(fnmatchcase, parts, wanted))
    }
