"""The identity of a run, equal on all ranks: settings, versions, code, data, and variables that change the result.

Each rank looks at its own machine; :mod:`recipe_core.engine.agreement` compares. No torch here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job

Identity = dict[str, dict[str, str]]
"""Facts of a rank by section and name."""
_HEAD = 1 << 16
"""Bytes of a file of data that are compared; what follows them in files of equal size is not."""
_HEADS = 64
"""Files of one setting whose beginnings are compared; of further ones only the sizes are."""


def identity(job: Job, world_size: int, libraries: Sequence[str], variables: re.Pattern[str]) -> Identity:
    """The facts of this process and its machine, for a run of ``job`` on ``world_size`` processes.

    ``libraries`` are distributions whose versions count, ``variables`` the names of those that change the result.
    """
    packages = _packages(job)
    return {
        "settings": {name: _text(value) for name, value in flat({**job.as_dict(), "engine": job.engine.spec.name})},
        "processes": {"number of processes": str(world_size)},
        "versions": {
            "Python": ".".join(map(str, sys.version_info[:2])),
            **{f"package {name}": _version(name) for name in sorted({*libraries, *_distributions(packages)})},
        },
        "code": {name: digest for package in packages for name, digest in _code(package)},
        "data": dict(_data(job)),
        "environment": {
            f"variable {name}": value for name, value in os.environ.items() if variables.fullmatch(name)
        },
    }  # fmt: skip


def digest(facts: Mapping[str, str]) -> str:
    """A hash of the facts of a section."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def differences(facts: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[str]:
    """A line for each name whose values, one mapping per rank, are not all the same: which ranks have which."""
    lines = []
    for name in dict.fromkeys(name for one in facts for name in one):
        values: dict[str, list[int]] = {}
        for rank, one in enumerate(facts):
            values.setdefault(one.get(name, "not there"), []).append(rank)
        if len(values) > 1:
            shown = [f"{value} on {_ranks(ranks, hosts)}" for value, ranks in values.items()]
            lines.append(f"{name}: {', '.join(shown)}")
    return lines


def _ranks(ranks: list[int], hosts: Sequence[str]) -> str:
    """Ranks in words, with their machines."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    numbers = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'s' * (len(ranks) > 1)} {numbers} ({', '.join(dict.fromkeys(hosts[rank] for rank in ranks))})"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _packages(job: Job) -> list[str]:
    """Top-level packages whose code a run of ``job`` executes: the core and the plugins of its parts."""
    parts = (job.model, job.data, job.layout, job.checkpoint, job.engine, job.loss, job.optimizer, job.schedule)
    named = [target for part in parts for target in (getattr(part.spec, "build", ""), type(part.config).__module__)]
    return sorted({name.partition(":")[0].partition(".")[0] for name in ["recipe_core", job.recipe.run, *named]} - {""})


def _distributions(packages: Sequence[str]) -> list[str]:
    return [package.replace("_", "-") for package in packages if package.startswith("recipe_")]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _code(package: str) -> Iterator[tuple[str, str]]:
    """Each source file of a package with a hash of its content."""
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    if file is None:
        return
    root = Path(file)
    if root.name != "__init__.py":
        yield f"code {root.name}", _hash(root.read_bytes())
        return
    for folder, folders, names in os.walk(root.parent):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".yaml", ".so")):
                path = Path(folder, name)
                yield f"code {package}/{path.relative_to(root.parent).as_posix()}", _hash(path.read_bytes())


def _data(job: Job) -> Iterator[tuple[str, str]]:
    """Each file that a setting names: its size, and a hash of its beginning."""
    for name, value in flat(job.as_dict()):
        values = value if isinstance(value, (list, tuple)) else (value,)
        paths = [Path(text) for text in values if isinstance(text, str) and ("/" in text or Path(text).exists())]
        for number, file in enumerate(files_named(paths)):
            yield f"{name}: {file}", _described(file, head=number < _HEADS)


def files_named(paths: Iterable[Path]) -> list[Path]:
    """The files and folders that ``paths`` name: themselves, a folder's entries, or those whose names a path begins.

    ``data/wiki`` names ``data/wiki.bin``. Each folder is listed once, however many of the paths lie in it.
    """
    listings: dict[Path, list[str]] = {}
    found = []
    for path in paths:
        try:
            if path.is_dir():
                found += [path / name for name in _listing(path, listings) if not name.startswith(".")]
            elif path.exists():
                found.append(path)
            elif path.parent.is_dir():
                found += [path.parent / name for name in _beginning(f"{path.name}.", _listing(path.parent, listings))]
        except (OSError, ValueError):  # what cannot be looked at names nothing here; its reader says why
            continue
    return found


def _listing(folder: Path, listings: dict[Path, list[str]]) -> list[str]:
    if folder not in listings:
        listings[folder] = sorted(os.listdir(folder))  # noqa: PTH208  # names, of which there may be thousands
    return listings[folder]


def _beginning(text: str, names: list[str]) -> Iterator[str]:
    """Those of the sorted ``names`` that begin with ``text``."""
    return takewhile(lambda name: name.startswith(text), islice(names, bisect_left(names, text), None))


def _described(file: Path, *, head: bool) -> str:
    try:
        if not file.is_file():
            return "a folder"
        with file.open("rb") as opened:
            start = f", which begin with {_hash(opened.read(_HEAD))}" if head else ""
            return f"{os.fstat(opened.fileno()).st_size:,} bytes{start}"
    except OSError as error:
        return f"unreadable ({error.strerror})"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
