"""Submodules by patterns of their names."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn


def matching(module: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """Submodules whose name matches ``pattern`` (``"blocks.*"``; a star stands for one level), in their order.

    Empty where none does, or where ``pattern`` is empty.
    """
    wanted = pattern.split(".")
    return {
        name: submodule
        for name, submodule in module.named_modules()
        if name and len(parts := name.split(".")) == len(wanted) and all(map(fnmatchcase, parts, wanted))
    }
