"""The real neuronx-distributed on a CPU, where AWS's closed packages are not: its public source, run in its CPU mode.

The source is Python alone (https://github.com/aws-neuron/neuronx-distributed, folder ``src``). On import it looks up a
hundred names of packages that AWS gives out for Trainium. Here each such name is a class that does nothing, and that
raises if the package calls it later: nothing that is compared is computed by it.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

SOURCE = "RECIPE_NEURONX_SOURCE"
"""The environment variable that names the folder in which ``neuronx_distributed`` lies."""
PACKAGE = "neuronx_distributed"
CLOSED = ("libneuronxla", "neuronxcc", "nki", "nkilib", "torch_neuronx")


def missing() -> str:
    """Why the package cannot run here; empty where it can. Nothing of it is imported."""
    source = os.environ.get(SOURCE)
    if source and not (Path(source) / PACKAGE / "parallel_layers").is_dir():
        return f"{SOURCE}={source}: no {PACKAGE}/parallel_layers in it; name the folder src of its repository"
    if not source and not _installed():
        return f"{PACKAGE} is not installed; {SOURCE} may name the folder src of its repository"
    if absent := [name for name in ("torch_xla", "transformers", "boto3", "tenacity") if find_spec(name) is None]:
        return f"{PACKAGE} needs {', '.join(absent)}, which is not installed"
    return ""


def install() -> None:
    """Make it known to this process, in its CPU mode, and import it.

    Raises:
        ImportError: the package asks for something else that is not there.
    """
    os.environ.update(NXD_CPU_MODE="1", PJRT_DEVICE="CPU")
    if PACKAGE in sys.modules:
        return
    source = os.environ.get(SOURCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an enumeration of its own uses what later releases of Python take away
        importlib.import_module("torch_xla")  # which asks for a closed package and does without
        closed = [name for name in CLOSED if find_spec(name) is None]
        sys.meta_path.insert(0, _Finder([source] if source else None, closed))
        if "torch_neuronx" in closed:
            vars(torch.classes)["neuron"] = _Module("torch.classes.neuron")  # which its libraries register
        importlib.import_module(f"{PACKAGE}.parallel_layers.layers")
    _Name.importing = False


def _installed() -> bool:
    spec = find_spec(PACKAGE)
    folders = (spec and spec.submodule_search_locations) or ()  # the empty package of the public index has one module
    return any((Path(folder) / "parallel_layers").is_dir() for folder in folders)


class _Finder(MetaPathFinder, Loader):
    """Finds the package in its source folder, and every module of a closed package."""

    def __init__(self, source: list[str] | None, closed: Sequence[str]) -> None:
        self._source, self._closed = source, closed

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name == PACKAGE and self._source:
            return PathFinder.find_spec(name, self._source)
        return spec_from_loader(name, self, is_package=True) if name.partition(".")[0] in self._closed else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_ANSWERS.get(module.__name__, {}))


class _Module(ModuleType):
    """A module of a closed package, which has whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {"__module__": self.__name__})


class _Name(type):
    """A name of a closed package: to inherit from, to decorate with, to annotate with."""

    importing = True

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {"__module__": f"{cls.__module__}.{cls.__name__}"})

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not _Name.importing:
            raise RuntimeError(f"{cls.__module__}.{cls.__name__} of AWS's closed packages was called, and is not here")
        return args[0] if len(args) == 1 and isinstance(args[0], FunctionType) else cls  # as a decorator


class _CollectivesConfig:
    """For ring attention, which nothing here uses: each rank's partners, none."""

    def __init__(self, replica_groups: Sequence[Sequence[int]]) -> None:
        self.rank_src_tgt_pairs = {rank: [] for group in replica_groups for rank in group}


_PLATFORM = {"get_platform_target": lambda: "trn1"}
_ANSWERS: dict[str, dict[str, Any]] = {
    "torch_neuronx.utils": _PLATFORM,
    "torch_neuronx.utils.utils": _PLATFORM,
    "neuronxcc.nki._pre_prod_kernels.collectives": {"CollectivesConfig": _CollectivesConfig},
}
"""The package's question when it makes its groups."""
