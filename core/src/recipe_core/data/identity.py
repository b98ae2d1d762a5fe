"""Identity of a run's data and tokenizer: digests that job.yaml records for later comparison. No torch here.

A path is not an identity: its content may change. ``docs/explanation/identity.md`` lists what is compared when.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from recipe_core.data.digest import file_problem
from recipe_core.data.prepare.manifest import NAME as MANIFEST
from recipe_core.data.prepare.manifest import read_manifest
from recipe_core.errors import ConfigError, DataError, DiskError, PluginError
from recipe_core.files import home, load_or_build
from recipe_core.files.documents import DocumentError, parse_json, read_text
from recipe_core.files.named import split_weights
from recipe_core.files.objects import ObjectPath, is_address
from recipe_core.files.objects.copies import local_file
from recipe_core.hooks.specs import DataIdentity, Dataset, Part
from recipe_core.hooks.specs.wrapper import WRAPPERS, wrapper_text
from recipe_core.hooks.target import call
from recipe_core.launch.identity import files_named, paths_in, texts_of
from recipe_core.settings import fill
from recipe_core.settings.sections import IDENTITY

TOKENIZER = "tokenizer"
"""Folder of a run that holds a copy of its tokenizer."""
PHASES, NO_PHASES = "phases", "none"
"""The entry of a record that lists what training reads from a sample on; its value where that must not change."""
_BLOCK = 4096
_BLOCKS = 256
"""Number of blocks that are read of all files together, but at least two of each. Smaller sets are read completely."""
_DIGITS = 32
"""Hexadecimal digits of a digest: half of SHA-256."""
_SHOWN = 12
_LARGE = 200_000
"""The digest of a tokenizer.json with at least this many characters is cached."""
_IGNORED = ("decoder", "padding", "post_processor", "truncation", "version")
"""Entries of a tokenizer.json that do not affect token ids."""
_NOUNS = {"content": "the data", "manifest": "the manifest of the data", "tokenizer": "the tokenizer"}


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of a dataset with its tokenizer."""

    record: Mapping[str, Any]
    """Plain data for job.yaml: ``content``, ``manifest``, ``tokenizer``, ``order`` and ``phases``, as far as known."""
    conflicts: tuple[str, ...] = ()
    tokenizer: Mapping[str, str] = field(default_factory=dict)
    """Names and texts of the tokenizer's files."""


def identity_of(data: Part[Dataset], tokenizer: Mapping[str, str] | None = None) -> Identity:
    """Determine the identity of a dataset, with ``tokenizer`` or, by default, its own tokenizer.

    Raises:
        RecipeError: a file is missing, or its size differs from its manifest.
        PluginError: the plugin's function does not return a DataIdentity.
    """
    spec, owner = data.spec, f"dataset {data.spec.name!r}"
    data_identity = (
        call(spec.identity, owner, data.config) if spec.identity else identity_of_files(named_files(data.config))
    )
    if not isinstance(data_identity, DataIdentity):
        raise PluginError(f"{owner}: {spec.identity!r} returned {data_identity!r:.60}; expected a DataIdentity")
    texts = tokenizer
    if texts is None:
        texts = (call(spec.tokenizer, owner, data.config) if spec.tokenizer else None) or {}
    record = {**_record(data_identity), "tokenizer": tokenizer_digest(texts)}
    if data.wrappers:  # which may filter, so that a number of a sample is another one here
        record["order"] |= _wrapper_order(data) | {PHASES: record.pop(PHASES) or NO_PHASES}
    return Identity(
        record=_without_empty(record),
        conflicts=data_identity.conflicts,
        tokenizer=texts,
    )


def _record(identity: DataIdentity) -> dict[str, Any]:
    return {
        "content": identity.content,
        "manifest": identity.manifest,
        "order": fill.plain(dict(identity.order)),
        PHASES: [{"at": at, **_without_empty(_record(one))} for at, one in sorted(identity.phases.items())],
    }


def _without_empty(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value}


def _wrapper_order(data: Part[Dataset]) -> dict[str, str]:
    return {WRAPPERS: wrapper_text(data, {part.spec.name: fill.plain(part.config) for part in data.wrappers})}


def identity_of_files(
    files: Sequence[Path | ObjectPath], order: Mapping[str, Any] | None = None, conflicts: Iterable[str] = ()
) -> DataIdentity:
    """Return the identity of data in ``files``, whose order matters; see :class:`DataIdentity` for the other arguments.

    It is the same for files and for their copies in object storage.

    Raises:
        DataError: a file cannot be read, or its size differs from its manifest.
    """
    return DataIdentity(
        content=content_digest(files), manifest=_manifest_digest(files), order=order or {}, conflicts=tuple(conflicts)
    )


def content_digest(files: Sequence[Path | ObjectPath]) -> str:
    """Return a digest of file sizes and of 4 KiB blocks spread over each file; names do not count.

    Up to 1 MiB in total is read completely; beyond that, changes between the blocks are not detected. Empty without
    files.

    Raises:
        DataError: a file cannot be read.
    """
    blocks, digest = max(2, _BLOCKS // max(1, len(files))), sha256()
    for path in files:
        if isinstance(path, ObjectPath):
            stat = path.stat()
            digest.update(stat.size.to_bytes(8, "little"))
            ranges = [(start, start + length) for start, length in _sampled_ranges(stat.size, blocks)]
            for block in path.read_ranges(ranges, stat.etag):
                digest.update(block)
            continue
        try:
            number = os.open(path, os.O_RDONLY)
            try:
                size = os.fstat(number).st_size
                digest.update(size.to_bytes(8, "little"))
                for start, length in _sampled_ranges(size, blocks):
                    digest.update(os.pread(number, length, start))
            finally:
                os.close(number)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()[:_DIGITS] if files else ""


def _sampled_ranges(size: int, blocks: int) -> Iterator[tuple[int, int]]:
    if size <= blocks * _BLOCK:
        yield 0, size
    else:
        last = size - _BLOCK
        yield from ((last * number // (blocks - 1), _BLOCK) for number in range(blocks))


def _manifest_digest(files: Sequence[Path | ObjectPath]) -> str:
    """Digest of the files' SHA-256 in the manifests of ``recipe prepare``, after a check of their sizes."""
    manifests: dict[str, Mapping[str, Any]] = {}
    problems, sums = [], []
    for path in files:  # maybe thousands: os.path takes a quarter of the time of pathlib
        parent, name = os.path.split(str(path))
        grandparent, parent_name = os.path.split(parent)
        # Shards may be in a subfolder.
        for folder, listed in ((parent, name), (grandparent, f"{parent_name}/{name}")):
            if folder not in manifests:
                manifests[folder] = _listed(folder)
            facts = manifests[folder].get(listed)
            if isinstance(facts, Mapping) and {"bytes", "sha256"} <= facts.keys():
                sums.append(str(facts["sha256"]))
                if problem := _size_problem(path, facts["bytes"]):
                    problems.append(f"{path}: {problem}, as {folder}/{MANIFEST} lists it; prepare the set again")
                break
    if problems:
        raise DataError("\n".join(problems))
    return _digest(sums) if files and len(sums) == len(files) else ""


def _size_problem(path: Path | ObjectPath, size: int) -> str:
    if isinstance(path, Path):
        return file_problem(path, size)
    actual = path.stat().size
    return "" if actual == size else f"has {actual:,} bytes instead of {size:,}"


def _listed(folder: str) -> Mapping[str, Any]:
    if not is_address(folder):
        place = Path(folder)
    elif (copy := local_file(ObjectPath.parse(folder) / MANIFEST)) is not None:
        place = copy.parent
    else:
        return {}
    try:
        files: Mapping[str, Any] = read_manifest(place).get("files", {})
    except DataError:  # of another program, or damaged, which `recipe verify` reports
        return {}
    return files


def tokenizer_digest(texts: Mapping[str, str]) -> str:
    """Return a digest of everything that affects token ids, from a tokenizer's files; empty without files.

    Files that differ only in layout or in entries for decoding, padding and special tokens at the ends are equal.
    """
    if "tokenizer.json" in texts:
        return _cached_digest(texts["tokenizer.json"])
    if "vocab.txt" in texts:
        pieces = texts["vocab.txt"].splitlines()
        return _digest({"pieces": pieces, "lowercase": lowercases(texts)})
    return _digest({name: text.split("\n") for name, text in texts.items()}) if texts else ""


def _cached_digest(text: str) -> str:
    # A large file is parsed once per machine: 0.1 s for 50,000 tokens.
    if len(text) < _LARGE:
        return _digest_of_json(text)

    def write(part: Path) -> None:
        part.write_text(_digest_of_json(text), encoding="utf-8")

    place = home() / "tokenizers" / f"{sha256(text.encode()).hexdigest()[:_DIGITS]}.digest"
    try:
        cached = load_or_build(place, read_text, write)
    except (DiskError, DocumentError, OSError):
        return _digest_of_json(text)
    return cached if len(cached) == _DIGITS else _digest_of_json(text)


def _digest_of_json(text: str) -> str:
    try:
        content = parse_json(text)
    except (DocumentError, ValueError):
        content = None
    return _digest(_essence(content) if isinstance(content, dict) else text)


def lowercases(texts: Mapping[str, str]) -> bool:
    """True if BERT's tokenizer lowercases text: by its settings, else if its vocab.txt has no capital letter."""
    try:
        return bool(parse_json(texts["tokenizer_config.json"])["do_lower_case"])
    except (DocumentError, ValueError, KeyError, TypeError):
        pieces = texts["vocab.txt"].splitlines()
        return not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))


def _essence(content: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a tokenizer.json that affects token ids, normalised."""
    kept: dict[str, Any] = _without_none({name: value for name, value in content.items() if name not in _IGNORED})
    model = kept.get("model")
    if isinstance(model, dict):
        merges = model.get("merges")
        kept["model"] = {name: value for name, value in model.items() if value is not False and value != ""}
        if isinstance(merges, list):  # "a b" in older files, ["a", "b"] in newer ones
            kept["model"]["merges"] = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in merges]
    added = kept.get("added_tokens")
    if isinstance(added, list) and all(isinstance(token, dict) for token in added):
        kept["added_tokens"] = [{name: token[name] for name in token if name != "special"} for token in added]
    return kept


def _without_none(value: Any) -> Any:
    # Some releases of the library write None for entries that others omit.
    if isinstance(value, dict):
        return {name: _without_none(entry) for name, entry in value.items() if entry is not None}
    return value


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def recorded_identity(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity in the sections of a job.yaml; empty if none is recorded, as by earlier releases."""
    identity = sections.get(IDENTITY)
    return dict(identity) if isinstance(identity, Mapping) else {}


def differences(
    recorded: Mapping[str, Any], present: Mapping[str, Any], names: Iterable[str] = (), consumed: int | None = None
) -> list[str]:
    """Return one sentence for each of ``names`` (default: all) in which two identities differ.

    Entries that one of them lacks are not compared. Phases belong to the order; with ``consumed``, the number of
    training samples that were read, only those count that have begun.
    """
    old, new = dict(_flat(recorded)), dict(_flat(present))
    parts = tuple(names) or ("content", "manifest", "tokenizer", "order")
    lines = []
    for name in sorted(old.keys() & new.keys()):
        if old[name] == new[name] or name.partition(".")[0] not in parts:
            continue
        if name in _NOUNS:
            lines.append(f"{_NOUNS[name]}: digest {old[name][:_SHOWN]} was recorded, now {new[name][:_SHOWN]}")
        else:
            lines.append(f"data.{name.removeprefix('order.')}: {old[name]} was recorded, now {new[name]}")
    if recorded and present and "order" in parts:
        lines += _phase_differences(_begun(recorded, consumed), _begun(present, consumed), consumed)
    return lines


def _begun(record: Mapping[str, Any], consumed: int | None) -> dict[int, Mapping[str, Any]]:
    phases = record.get(PHASES, ())
    return {phase["at"]: phase for phase in phases if consumed is None or phase["at"] < consumed}


def _phase_differences(
    old: Mapping[int, Mapping[str, Any]], new: Mapping[int, Mapping[str, Any]], consumed: int | None
) -> Iterator[str]:
    read = "" if consumed is None else f"; the run has read {consumed:,} samples"
    for at in sorted(old.keys() | new.keys()):
        where = f"data.phases, from sample {at:,} on"
        if at not in new:
            yield f"{where}: was recorded, and is missing now{read}"
        elif at not in old:
            least = "" if consumed is None else f", and a new phase begins at {consumed:,} or later"
            yield f"{where}: is new{read}{least}"
        else:
            yield from (f"{where}: {line}" for line in differences(old[at], new[at]))


def _flat(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if name in _NOUNS and isinstance(value, str):
            yield name, value
        elif name == "order" and isinstance(value, Mapping):
            yield from ((f"order.{key}", item) for key, item in value.items() if key != WRAPPERS)
    if record:  # also one without wrappers differs from one with
        order = record.get("order")
        yield f"order.{WRAPPERS}", order.get(WRAPPERS, "none") if isinstance(order, Mapping) else "none"


def acceptance_code(changes: Sequence[str]) -> str:
    """Return the code by which a user accepts exactly these differences."""
    return _digest(sorted(changes))[:8]


def require_accepted(changes: Sequence[str], accept: str | None, head: str, advice: str, setting: str) -> None:
    """Refuse differences, unless the user has given the code that accepts them.

    Args:
        changes: the differences, one sentence each.
        accept: the code that was given.
        head: first line of the message: what was compared.
        advice: what to do.
        setting: prefix of the code on the command line: ``train.accept=``, ``--accept ``.

    Raises:
        ConfigError: there are differences, and ``accept`` is not their code.
    """
    if changes and accept != acceptance_code(changes):
        lines = "\n".join(f"  - {line}" for line in changes)
        raise ConfigError(
            f"{head}:\n{lines}\n{advice}. If the difference is intended, add {setting}{acceptance_code(changes)}"
        )


def require_consistent(identity: Identity, accept: str | None) -> None:
    """Refuse data with conflicts, unless ``train.accept`` accepts them.

    Raises:
        ConfigError: it does not.
    """
    head, advice = "data.files: the files do not belong together", "Name files that one tokenizer encoded"
    require_accepted(identity.conflicts, accept, head, advice, "train.accept=")


def read_copy(run: Path) -> dict[str, str]:
    """Read the copy of the tokenizer in the run folder ``run``: texts by file name; empty if there is none.

    Raises:
        DataError: a file cannot be read.
    """
    folder = run / TOKENIZER
    texts = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            texts[path.name] = read_text(path)
        except (OSError, DocumentError) as error:
            raise DataError(f"{path}: cannot be read ({error})") from error
    return texts


def named_files(config: Any) -> list[Path]:
    """Return the files that the settings of a dataset name."""
    paths = [path for _, texts in texts_of(fill.plain(config)) for path in paths_in(texts)]
    return [path for path in files_named(paths) if path.is_file()]


def names_data(config: Any) -> bool:
    """True if the settings of a dataset name files, or objects in a bucket; false for embedded data."""
    texts = [text for _, named in texts_of(fill.plain(config)) for text in named]
    return bool(named_files(config)) or any(is_address(one.text) for one in split_weights(texts))
