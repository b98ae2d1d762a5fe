"""Manifest entries of the inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from recipe_core.data.prepare.part import PreparePart
from recipe_core.errors import DataError
from recipe_core.files import digest
from recipe_core.files.objects import ObjectPath, ObjectStat, is_address
from recipe_core.files.objects.reading import ObjectFile

T = TypeVar("T")


def input_facts(paths: Sequence[Path | ObjectFile]) -> list[dict[str, Any]]:
    """Return path, size and modification time (ETag of an object) of every input; a continued run compares them."""
    return [{"path": str(path), **_version(path)} for path in paths]


def _version(path: Path | ObjectFile) -> dict[str, Any]:
    if isinstance(path, ObjectFile):
        return {"bytes": path.size, "changed": path.version.etag}
    facts = path.stat()
    return {"bytes": facts.st_size, "changed": facts.st_mtime_ns}


def _place(fact: Mapping[str, Any]) -> Path | ObjectFile:
    if is_address(fact["path"]):
        return ObjectFile(ObjectPath.parse(fact["path"]), ObjectStat(fact["bytes"], fact["changed"]))
    return Path(fact["path"])


def sha256(path: Path | ObjectFile) -> str:
    """Return the SHA-256 of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return digest(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def hashed(facts: Sequence[Mapping[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    """Start to hash the inputs in a thread.

    Args:
        facts: of the inputs, by :func:`input_facts`.

    Returns:
        A function that waits for the thread and returns the manifest's entry of each input: path, bytes and SHA-256. It
        raises a DataError if an input cannot be read, or no longer matches ``facts``.
    """

    def work() -> list[str | DataError]:
        found: list[str | DataError] = []
        for fact in facts:
            try:
                found.append(sha256(_place(fact)))
            except DataError as error:
                found.append(error)
        return found

    hashes = _in_background(work)

    def wait() -> list[dict[str, Any]]:
        entries = []
        for fact, value in zip(facts, hashes.result(), strict=True):
            require_unchanged(fact)
            if isinstance(value, DataError):
                raise value
            entries.append({"path": fact["path"], "bytes": fact["bytes"], "sha256": value})
        return entries

    return wait


def _in_background(work: Callable[[], T]) -> Future[T]:
    # A daemon thread: a preparation that fails does not wait for the hashes.
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised where the outcome is awaited
            outcome.set_exception(error)

    Thread(target=run, name="input hashes", daemon=True).start()
    return outcome


Range = tuple[int, int]
"""The first and the last byte, excluded."""


def hashed_part(
    facts: Sequence[Mapping[str, Any]],
    part: PreparePart,
    pieces: Mapping[str, Range],
    bounds: Callable[[Sequence[str]], Mapping[str, Sequence[Range]]],
) -> Callable[[], dict[str, Any]]:
    """Start to hash, in a thread, the inputs that begin in a part, and the pieces that it reads of others.

    Args:
        facts: of all inputs of the preparation, by :func:`input_facts`.
        part: the part.
        pieces: by path, what the part reads of each input.
        bounds: returns for paths what each part reads of these inputs. The part that reads a piece hashes it, and
            so does the part in which the file begins, so that a merge finds copies that differ.

    Returns:
        A function that waits for the thread and returns the entries ``inputs``, ``pieces`` and ``all_inputs`` of the
        part's manifest. It raises a DataError if an input cannot be read, or no longer matches ``facts``.
    """
    total, before, own = sum(fact["bytes"] for fact in facts), 0, []
    for fact in facts:
        own += [fact["path"]] * part.owns(before, total)
        before += fact["bytes"]

    def work() -> dict[str, Any]:
        entries: dict[str, Any] = {"inputs": [], "pieces": []}
        ranges = bounds(own)
        for fact in facts:
            path, place, whole = fact["path"], _place(fact), [(0, fact["bytes"])]
            if path in ranges:
                parts = ranges[path] if len(ranges[path]) > 1 else []
                sha256, *others = _digests(place, [*whole, *parts])
                entries["inputs"].append({"path": path, "bytes": fact["bytes"], "sha256": sha256})
                entries["pieces"] += [_piece(path, *found) for found in zip(parts, others, strict=True)]
            elif path in pieces:
                entries["pieces"].append(_piece(path, pieces[path], *_digests(place, [pieces[path]])))
        return entries

    hashes = _in_background(work)

    def wait() -> dict[str, Any]:
        hashes.exception()  # waits; a changed input explains it better
        used = {*own, *pieces}
        for fact in facts:
            if fact["path"] in used:
                require_unchanged(fact)
        try:
            return {**hashes.result(), "all_inputs": _all(facts)}
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error})") from error

    return wait


def require_unchanged(fact: Mapping[str, Any]) -> None:
    """Raise DataError if an input no longer has the size and the time (ETag) of ``fact``, from :func:`input_facts`."""
    place = _place(fact)
    same = place.is_unchanged() if isinstance(place, ObjectFile) else place.exists() and input_facts([place]) == [fact]
    if not same:
        raise DataError(f"{place}: changed while it was read; prepare it again")


def require_same_content(manifest: Mapping[str, Any]) -> None:
    """Raise DataError if the inputs of a data set, or of a part, are no longer those that its manifest describes."""
    whole = [{**entry, "start": 0, "stop": entry["bytes"]} for entry in manifest.get("inputs", ())]
    for entry in (*whole, *manifest.get("pieces", ())):
        try:
            place = _current(entry["path"])
            same = _digests(place, [(entry["start"], entry["stop"])]) == [entry["sha256"]]
            same = same and entry.get("bytes") in (None, _version(place)["bytes"])
        except OSError as error:
            raise DataError(f"{entry['path']}: cannot be read ({error.strerror})") from error
        if not same:
            raise DataError(f"{entry['path']}: has changed")


def _current(path: str) -> Path | ObjectFile:
    if not is_address(path):
        return Path(path)
    place = ObjectPath.parse(path)
    return ObjectFile(place, place.stat())


def _all(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Parts of thousands of files need not list them all.
    names = json.dumps([[fact["path"], fact["bytes"]] for fact in facts])
    digest_of_names = hashlib.sha256(names.encode("utf-8", "surrogatepass")).hexdigest()
    return {"files": len(facts), "bytes": sum(fact["bytes"] for fact in facts), "sha256": digest_of_names}


def _piece(path: str, place: Range, sha256: str) -> dict[str, Any]:
    return {"path": path, "start": place[0], "stop": place[1], "sha256": sha256}


def _digests(path: Path | ObjectFile, ranges: Sequence[Range], block: int = 1 << 20) -> list[str]:
    """SHA-256 of ranges of a file in one pass; the first range covers the others, which follow each other."""
    outer, inner, number = hashlib.sha256(), [hashlib.sha256() for _ in ranges[1:]], 0
    at, stop = ranges[0]
    with path.open("rb", buffering=0) as file:
        file.seek(at)
        while data := file.read(min(block, stop - at)):
            outer.update(data)
            view = memoryview(data)
            while view:
                if number == len(inner):
                    break
                length = min(len(view), ranges[1 + number][1] - (at + len(data) - len(view)))
                inner[number].update(view[:length])
                view = view[length:]
                number += bool(view)
            at += len(data)
    return [digest.hexdigest() for digest in (outer, *inner)]
