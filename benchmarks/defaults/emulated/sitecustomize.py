"""Lets every Python that has this folder on PYTHONPATH train as if its processor had bf16 instructions.

Python imports this file by itself, before anything else; nothing is done until recipe asks for the processor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_ASKED = "recipe_core.engine.precision"


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _ASKED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.loader is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            from bf16_products import Bf16Products

            execute(module)
            module.multiplies_bf16 = lambda device: True
            Bf16Products().__enter__()  # for as long as the process lives

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
