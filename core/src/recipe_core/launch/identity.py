"""The identity of a run, equal on all ranks: settings, versions, code, data, and variables that change the result.

Each rank reads its own machine; :mod:`recipe_core.engine.agreement` compares them. No torch here.
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

from recipe_core.errors import DataError
from recipe_core.files.named import matches, read_lists, split_weights
from recipe_core.files.objects import is_address
from recipe_core.hooks.specs.wrapper import nested
from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job
from recipe_core.settings.values import OF_PATHS

Identity = dict[str, dict[str, str]]
"""Facts of a rank by section and name."""
_HEAD = 1 << 16
"""Bytes at the beginning of a data file that are compared; the rest of files of equal size is not."""
_HEADS = 64
"""Files of one setting whose beginnings are compared; of any further ones only the sizes are."""


def identity(job: Job, world_size: int, libraries: Sequence[str], variables: re.Pattern[str]) -> Identity:
    """Return the facts of this process and its machine, for a run of ``job`` on ``world_size`` processes.

    ``libraries`` are distributions whose versions are compared; ``variables`` matches the names of environment
    variables that change the result.
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
    """Return a hash of the facts of a section."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def differences(facts: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[str]:
    """Return a line for each name whose values differ between the ranks (one mapping each): which ranks have which."""
    lines = []
    for name in dict.fromkeys(name for rank_facts in facts for name in rank_facts):
        values: dict[str, list[int]] = {}
        for rank, rank_facts in enumerate(facts):
            values.setdefault(rank_facts.get(name, "not there"), []).append(rank)
        if len(values) > 1:
            shown = [f"{value} on {_ranks(ranks, hosts)}" for value, ranks in values.items()]
            lines.append(f"{name}: {', '.join(shown)}")
    return lines


def _ranks(ranks: list[int], hosts: Sequence[str]) -> str:
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
    parts = (
        job.model,
        *nested(job.data),
        job.layout,
        job.checkpoint,
        job.engine,
        job.loss,
        job.optimizer,
        job.schedule,
    )
    named = [target for part in parts for target in (getattr(part.spec, "build", ""), type(part.config).__module__)]
    return sorted({name.partition(":")[0].partition(".")[0] for name in ["recipe_core", job.recipe.run, *named]} - {""})


def _distributions(packages: Sequence[str]) -> list[str]:
    return [package.replace("_", "-") for package in packages if package.startswith("recipe_")]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def code_digest(targets: Iterable[str]) -> str:
    """Return a hash of the code of the packages, or modules of one file, that hold ``targets``; they are imported."""
    packages = sorted({target.partition(":")[0].partition(".")[0] for target in targets})
    return digest({name: value for package in packages for name, value in _code(package)})


def _code(package: str) -> Iterator[tuple[str, str]]:
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
    for name, texts in texts_of(job.as_dict()):
        of_data = name.startswith("data.") and OF_PATHS.search(name.rpartition(".")[2])
        paths = [text for text in texts if of_data or "/" in text or Path(text).exists()]
        for number, file in enumerate(files_named(paths_in(paths))):
            yield f"{name}: {file}", _fingerprint(file, head=number < _HEADS)


def texts_of(settings: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the texts of each setting, those of settings in a list included, with its path."""
    for name, value in flat(settings, parent):
        items = value if isinstance(value, (list, tuple)) else [value]
        if texts := [item for item in items if isinstance(item, str) and item]:
            yield name, texts
        for number, item in enumerate(items):
            if isinstance(item, Mapping) and item:
                yield from texts_of(item, f"{name}[{number}].")


def paths_in(texts: Sequence[str]) -> list[Path]:
    """Return the paths in the texts of a setting: those of list files and patterns, without weights.

    See :mod:`recipe_core.files.named`. A list file is among them; one that cannot be read, its reader reports.
    Addresses of object storage are left out.
    """
    paths = []
    for entry in split_weights(texts):
        if entry.is_list:
            paths.append(entry.path)
        try:
            for one in read_lists([entry], objects=True):
                if is_address(one.text):
                    continue
                paths += (one.is_pattern and not one.path.exists() and matches(one.path)) or [one.path]
        except (DataError, OSError):
            continue
    return paths


def files_named(paths: Iterable[Path]) -> list[Path]:
    """Return the files and folders that ``paths`` name: themselves, a folder's entries, or all that a path prefixes.

    ``data/wiki`` names ``data/wiki.bin``. Each folder is listed once, however many of the paths are in it.
    """
    listings: dict[Path, list[str]] = {}
    named = []
    for path in paths:
        try:
            if path.is_dir():
                named += [path / name for name in _listing(path, listings) if not name.startswith(".")]
            elif path.exists():
                named.append(path)
            elif path.parent.is_dir():
                named += [path.parent / name for name in _with_prefix(f"{path.name}.", _listing(path.parent, listings))]
        except (OSError, ValueError):  # an unreadable path names nothing here; its reader reports it
            continue
    return named


def _listing(folder: Path, listings: dict[Path, list[str]]) -> list[str]:
    if folder not in listings:
        listings[folder] = sorted(os.listdir(folder))  # noqa: PTH208  # names, of which there may be thousands
    return listings[folder]


def _with_prefix(text: str, names: list[str]) -> Iterator[str]:
    return takewhile(lambda name: name.startswith(text), islice(names, bisect_left(names, text), None))


def _fingerprint(file: Path, *, head: bool) -> str:
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
