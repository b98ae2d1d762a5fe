"""The layouts that the core brings. Start at ``divided.py`` for those that divide the model."""

from recipe_core.layouts.divided import divided
from recipe_core.layouts.replicated import ddp, single

__all__ = ["ddp", "divided", "single"]
