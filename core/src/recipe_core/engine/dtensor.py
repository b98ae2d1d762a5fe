"""Tells DTensors from other tensors without importing their module, which takes half a second with all it needs.

One process of one device has no DTensors, and commands that only read a model start in that much less time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_dtensor(value: object) -> TypeIs[DTensor]:
    """True if ``value`` is a DTensor. Code that made one has imported the module."""
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return dtensor is not None and isinstance(value, dtensor)
