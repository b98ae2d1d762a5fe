"""Parts of a preparation: their manifests, the checks before a merge, and files that are joined by offsets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.data.digest import file_problem
from recipe_core.data.prepare.manifest import NAME, read_manifest
from recipe_core.data.prepare.part import PreparePart
from recipe_core.errors import DataError
from recipe_core.files import sync
from recipe_core.launch.cores import usable_cores

_BLOCK = 4 << 20
_WRITERS = 8
_REQUIRED = {
    "kind": str, "part": str, "settings": dict, "same": dict, "counts": dict, "inputs": list, "pieces": list,
    "all_inputs": dict, "files": dict, "versions": dict,
}  # fmt: skip
"""Entries of the manifest of a part."""


@dataclass(frozen=True)
class PreparedPart:
    """The folder of a part, with its manifest."""

    folder: Path
    part: PreparePart
    manifest: Mapping[str, Any]

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of documents, tokens and so on in the part."""
        counts: Mapping[str, int] = self.manifest["counts"]
        return counts

    def size(self, name: str) -> int:
        """Return the bytes of a file, by the manifest."""
        size: int = self._facts(name)["bytes"]
        return size

    def read(self, name: str) -> bytes:
        """Return a small file.

        Raises:
            DataError: its bytes are not those of the manifest.
        """
        try:
            data = (self.folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{self.folder / name}: cannot be read ({error.strerror})") from error
        if hashlib.sha256(data).hexdigest() != self._facts(name)["sha256"]:
            raise self.damaged(name)
        return data

    def damaged(
        self, name: str, problem: str = "does not hold the bytes that were written (SHA-256 differs)"
    ) -> DataError:
        """Return the error of a damaged file."""
        return DataError(f"{self.folder / name}: {problem}; prepare part {self.part} again")

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file, by the manifest."""
        sha256: str = self._facts(name)["sha256"]
        return sha256

    def _facts(self, name: str) -> Mapping[str, Any]:
        if name not in self.manifest["files"]:
            raise self.damaged(NAME, f"does not list {name}")
        facts: Mapping[str, Any] = self.manifest["files"][name]
        return facts


def is_part(folder: Path) -> bool:
    """True if ``folder`` holds a part, whole or damaged."""
    try:
        return '"all_inputs": {' in (folder / NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def read_parts(folders: Sequence[Path]) -> list[PreparedPart]:
    """Return the parts in ``folders`` in order; together they are all of one preparation.

    Sizes are compared; who reads a file compares its digest.

    Raises:
        DataError: a folder holds no part, or a damaged one; parts differ in kind, settings, inputs, tokenizer or
            versions; one is missing, or there twice.
    """
    parts = sorted(map(read_part, folders), key=lambda part: part.part.number)
    first = parts[0]
    for before, part in zip([None, *parts], parts, strict=False):
        _require_alike(first, part)
        if before is not None and before.part == part.part:
            raise DataError(f"{part}: is part {part.part}, as {before} is; name each part once")
    _require_all(parts)
    for part in parts:
        for name, facts in part.manifest["files"].items():
            if problem := file_problem(part.folder / name, facts["bytes"]):
                raise part.damaged(name, problem)
    _require_same_pieces(parts)
    return parts


def read_part(folder: Path) -> PreparedPart:
    """Read the manifest of a part.

    Raises:
        DataError: ``folder`` holds no complete part, or a damaged manifest.
    """
    manifest = read_manifest(folder)
    if not manifest or "part" not in manifest:
        what = "is a whole data set" if manifest else f"has no {NAME}"
        raise DataError(f"{folder}: {what}, so it is no part that `recipe prepare ... part=K/N` has completed")
    if not all(isinstance(manifest.get(name), kind) for name, kind in _REQUIRED.items()):
        raise DataError(
            f"{folder / NAME}: does not hold what this version of `recipe prepare` writes; prepare it again"
        )
    return PreparedPart(folder, PreparePart.parse(manifest["part"]), manifest)


def _require_alike(first: PreparedPart, part: PreparedPart) -> None:
    ours, theirs = part.manifest, first.manifest
    if ours["kind"] != theirs["kind"]:
        raise DataError(f"{part}: is a part of {ours['kind']}, and {first} of {theirs['kind']}; merge them apart")
    if part.part.count != first.part.count:
        raise DataError(
            f"{part}: is part {part.part}, and {first} is part {first.part}; parts of one merge come from the same N"
        )
    for entry, again in (("settings", "prepare both with the same settings"), ("same", "prepare both with the same"),
                         ("versions", "prepare both with the same versions")):  # fmt: skip
        names = dict.fromkeys([*ours[entry], *theirs[entry]])
        for name in names:
            mine, other = ours[entry].get(name), theirs[entry].get(name)
            if mine != other:
                raise DataError(
                    f"{part}: was prepared with {name}={_short(mine)}, and {first} with {_short(other)}; {again}"
                )
    mine, other = ours["all_inputs"], theirs["all_inputs"]
    if mine != other:
        raise DataError(
            f"{part}: was prepared from {inputs_text(mine)}, and {first} from {inputs_text(other)}, or from files with "
            "other names or sizes; prepare all parts from the same inputs"
        )


def _short(value: object, most: int = 80) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}..."


def inputs_text(facts: Mapping[str, Any]) -> str:
    """Describe the entry ``all_inputs`` of a part."""
    return f"{facts['files']:,} file{'s' * (facts['files'] != 1)} of {facts['bytes']:,} bytes"


def _require_all(parts: Sequence[PreparedPart]) -> None:
    count = parts[0].part.count
    if len(parts) == count:
        return
    there = {part.part.number for part in parts}
    missing = [number for number in range(1, count + 1) if number not in there]
    more = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
    raise DataError(
        f"part {missing[0]}/{count} is missing{more}; prepare it with part={missing[0]}/{count}, and name all {count:,}"
    )


def _require_same_pieces(parts: Sequence[PreparedPart]) -> None:
    # The part in which a file begins has read all of it.
    owners = {entry["path"]: part for part in parts for entry in part.manifest["inputs"]}
    read = {
        (piece["path"], piece["start"], piece["stop"]): piece["sha256"]
        for part in parts
        for piece in part.manifest["pieces"]
        if owners.get(piece["path"]) is part
    }
    read |= {(entry["path"], 0, entry["bytes"]): entry["sha256"] for entry in merged_inputs(parts)}
    for part in parts:
        for piece in part.manifest["pieces"]:
            place = piece["path"], piece["start"], piece["stop"]
            if read.get(place) != piece["sha256"]:
                raise DataError(
                    f"{part}: read other bytes from {place[1]:,} to {place[2]:,} of {place[0]} than "
                    f"{owners.get(place[0], parts[0])}; prepare all parts from the same file"
                )


def merged_inputs(parts: Iterable[PreparedPart]) -> list[dict[str, Any]]:
    """Return the manifest's entries of all inputs, in order."""
    return [entry for part in parts for entry in part.manifest["inputs"]]


def merged_counts(parts: Sequence[PreparedPart]) -> dict[str, int]:
    """Return the sums of what the parts counted."""
    return {name: sum(part.counts[name] for part in parts) for name in parts[0].counts}


@dataclass(frozen=True)
class Section:
    """A file of a part, as bytes ``at`` and following of a joined file."""

    part: PreparedPart
    name: str
    at: int
    skip: int = 0
    """Bytes at its start that are left out."""
    change: Callable[[bytes], bytes] = bytes
    """Changes blocks whose sizes, but for the last, are multiples of 8; the length stays."""

    @property
    def stop(self) -> int:
        """The byte after the section."""
        return self.at + self.part.size(self.name) - self.skip


def join_files(path: Path, sections: Sequence[Section]) -> None:
    """Write ``path`` from ``sections``, several at a time, each at its offset; it is synced to disk.

    Raises:
        DataError: the bytes of a section are not those of its part's manifest.
        OSError: ``path`` cannot be written.
    """
    from concurrent.futures import ThreadPoolExecutor

    with path.open("wb") as file:
        file.truncate(max((section.stop for section in sections), default=0))
    pool = ThreadPoolExecutor(min(_WRITERS, usable_cores()), "merge")
    try:
        for done in [pool.submit(_copy, path, section) for section in sections]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
    sync(path)


def _copy(path: Path, section: Section) -> None:
    source = section.part.folder / section.name
    digest, skip = hashlib.sha256(), section.skip
    try:
        read = source.open("rb")
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror})") from error
    with read, path.open("r+b") as file:
        file.seek(section.at)
        left = section.part.size(section.name)
        while left and (block := read.read(min(_BLOCK, left))):
            digest.update(block)
            if data := block[skip:]:
                file.write(section.change(data))
            left -= len(block)
            skip = 0
    if left or digest.hexdigest() != section.part.sha256(section.name):
        raise section.part.damaged(section.name)
