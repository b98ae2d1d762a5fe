"""Find input files, their formats and compression; report all problems in one message."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from recipe_core.data.text.columns import column_format, column_problem, saved_files
from recipe_core.data.text.objects import input_objects
from recipe_core.data.text.stream import first_bytes
from recipe_core.data.text_settings import Format, Source, TextInput
from recipe_core.errors import DataError
from recipe_core.files.named import matches
from recipe_core.files.objects import is_address
from recipe_core.files.objects.reading import ObjectFile

_PACKED = {"gz": "gzip", "gzip": "gzip", "bz2": "bzip2", "zst": "zstd", "zstd": "zstd"}
_ENDINGS: dict[str, Format] = {
    **dict.fromkeys(("txt", "text", "md", "rst"), "text"),
    **dict.fromkeys(("jsonl", "ndjson", "json"), "jsonl"),
    "xml": "mediawiki",
}
_ARCHIVES = {
    **dict.fromkeys(("7z", "zip", "rar", "tar", "tgz", "tbz2", "tzst"), "unpack it first"),
    **dict.fromkeys(("xz", "lzma", "lz4", "br"), "unpack it, or pack it by gzip, bzip2 or zstd instead"),
    **dict.fromkeys(("sqlite", "db"), "export it as JSON lines first"),
    "feather1": "write it again by a later release, whose format is Feather 2",
    **dict.fromkeys(("pdf", "doc", "docx", "odt", "epub", "rtf"), "convert it to plain text first"),
    **dict.fromkeys(("bin", "idx", "npy", "h5", "hdf5", "pt", "safetensors"), "it is no text; name other inputs"),
}
"""File extensions that are refused, with advice."""
_MARKED_UP = {
    **dict.fromkeys(("html", "htm"), "convert it to plain text first, or set format=text to take the markup as well"),
    **dict.fromkeys(("csv", "tsv"), "write it as JSON lines, or set format=text to take it as it is"),
}
"""File extensions of structured text that is refused unless a format is set."""
_COLUMNS = {
    **dict.fromkeys(("parquet", "pq"), "Parquet"),
    **dict.fromkeys(("arrow", "arrows", "feather", "ipc"), "Arrow"),
}
"""File extensions of files with columns, which are known by their first bytes."""
_BINARY = {b"7z\xbc\xaf\x27\x1c": "7z", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"FEA1": "feather1", b"%PDF": "pdf"}
"""First bytes of such files."""
_POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of the text that stands for a file in Git LFS."""
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_HEAD_BYTES = 1 << 14
"""Bytes at the start of a file that determine its format."""


def find(settings: TextInput) -> list[Source]:
    """Return the input files: inputs in their order, files of a folder or pattern in order of names.

    Names that start with a dot are skipped, as in shells. Of a folder that ``datasets`` saved, only the files of the
    data set are read.

    Raises:
        DataError: one message for all problems.
    """
    problems: list[str] = []
    input_of: dict[Path | ObjectFile, str] = {}
    sources = []
    for name in settings.inputs:
        for path in _files(name, problems):
            if path in input_of:
                problems.append(f"{path}: named by {input_of[path]!r} and by {name!r}; its documents would come twice")
                continue
            input_of[path] = name
            source = _source(path, settings)
            if isinstance(source, str):
                problems.append(f"{path}: {source}")
            else:
                sources.append(source)
    if not problems and sources and not any(source.size for source in sources):
        nothing = f"there is nothing in {_files_are(len(sources))} empty; name other inputs"
        problems.append(f"{', '.join(settings.inputs)}: {nothing}")
    if problems:
        raise DataError(_one_message(problems))
    return sources


def total_bytes(settings: TextInput) -> int:
    """Return the size of all inputs on disk in bytes; ``Record.consumed`` counts up to it."""
    return sum(source.size for source in find(settings))


def _files_are(count: int) -> str:
    return "the file, it is" if count == 1 else f"any of the {count} files, all are"


def _one_message(problems: list[str], shown: int = 20) -> str:
    if len(problems) == 1:
        return problems[0]
    more = [f"  ... and {len(problems) - shown} more"] if len(problems) > shown else []
    return "\n".join([f"{len(problems)} problems:", *(f"  - {problem}" for problem in problems[:shown]), *more])


def _files(name: str, problems: list[str]) -> list[Path | ObjectFile]:
    if is_address(name):
        return _objects(name, problems)
    return list(_local_files(name, problems))


def _objects(name: str, problems: list[str]) -> list[Path | ObjectFile]:
    try:
        return list(input_objects(name))
    except DataError as error:
        problems.append(str(error))
        return []


def _local_files(name: str, problems: list[str]) -> list[Path]:
    path = Path(name).expanduser()
    before = len(problems)
    if path.is_dir():
        files = _in_order(_below(path, problems))
        if not files and len(problems) == before:
            problems.append(f"{name}: there is no file in this folder")
    elif os.path.lexists(path) or not re.search(r"[*?\[]", name):
        files = [path]
    else:
        files = _matches(path, problems)
        if not files and len(problems) == before:
            problems.append(f"{name}: no file matches this pattern (it was looked for from {Path.cwd()})")
    return files


def _in_order(units: Iterable[tuple[Path, list[Path]]]) -> list[Path]:
    return list(dict.fromkeys(path for _, paths in sorted(units) for path in paths))


def _below(folder: Path, problems: list[str]) -> Iterator[tuple[Path, list[Path]]]:
    """The files, each with its path, and the files of each saved data set, with its folder."""

    def unreadable(error: OSError) -> None:
        # Skipping it, as os.walk and Path.rglob do, would silently shorten the data set.
        problems.append(f"{error.filename}: the folder cannot be read ({error.strerror})")

    for where, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        try:
            saved = saved_files(Path(where), files)
        except DataError as error:
            problems.append(str(error))
            saved = []
        if saved is None:
            yield from ((path, [path]) for name in files if not name.startswith(".") for path in [Path(where, name)])
        else:
            folders[:] = []
            yield Path(where), saved


def _matches(pattern: Path, problems: list[str]) -> list[Path]:
    """Files that match a pattern, and all files in folders that match."""
    try:
        matching = matches(pattern)
    except DataError as error:
        problems.append(str(error))
        return []
    units: list[tuple[Path, list[Path]]] = []
    for path in matching:
        units += _below(path, problems) if path.is_dir() else [(path, [path])]
    return _in_order(units)


def _source(path: Path | ObjectFile, settings: TextInput) -> Source | str:
    *stem, ending = path.name.lower().split(".")
    expected = _PACKED.get(ending) if stem else None
    inner = ".".join(stem) if expected else path.name.lower()
    if "multistream-index" in inner:
        return "this is the index of a multistream dump, not its text; name the dump alone"
    try:
        if problem := _not_a_file(path):
            return problem
        size = path.size if isinstance(path, ObjectFile) else path.stat().st_size
        packing, start = first_bytes(path, _HEAD_BYTES)
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    if start.startswith(_POINTER):
        return "is a pointer of Git LFS, not the file that it stands for; get that by `git lfs pull`"
    if expected and packing != expected:
        holds = "is empty" if not size else f"holds no {expected} data"
        return f"the name ends in .{ending}, but the file {holds}; get it again, or give it its right name"
    if column := column_format(start):
        return _with_columns(Source(path, size, column, packing), settings)
    form = _format(inner, start, settings)
    if form in ("text", "jsonl", "mediawiki"):
        return Source(path, size, form, packing)  # type: ignore[arg-type]  # mypy does not narrow by `in`
    return form


def _not_a_file(path: Path | ObjectFile) -> str:
    if isinstance(path, ObjectFile) or path.is_file():
        return ""
    if not path.exists():
        return "there is no such file or folder"
    return "this is neither a file nor a folder; its end could not be told from a damaged file's"


def _with_columns(source: Source, settings: TextInput) -> Source | str:
    if source.packing:
        return f"holds a file of columns, packed by {source.packing}, which cannot be read so; unpack it first"
    return column_problem(source, settings) or source


def _format(name: str, start: bytes, settings: TextInput) -> Format | str:
    # A part of a dump is named ....xml-p10p30302; "wiki_00" has no extension.
    ending = re.sub(r"(?<=^xml)-.*", "", name.rpartition(".")[2]) if "." in name else ""
    binary = next((kind for magic, kind in _BINARY.items() if start.startswith(magic)), None)
    if binary or ending in _ARCHIVES:
        kind = binary or ending
        return f"a .{kind} file is not supported; {_ARCHIVES[kind]}"
    if ending in _COLUMNS:
        holds = f"holds no {_COLUMNS[ending]} data" if start else "is empty"
        return f"the name ends in .{ending}, but the file {holds}; get it again, or give it its right name"
    for mark, encoding in _MARKS.items():
        if start.startswith(mark) and settings.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "ascii"):
            return f"starts with the byte order mark of {encoding}; set encoding={encoding}"
    if b"\0" in start and not _has_zero_bytes(settings.encoding):
        return f"holds zero bytes, so it is no text in {settings.encoding}; name other inputs, or set encoding=..."
    if settings.format != "auto":
        return settings.format
    if ending in _MARKED_UP:
        return f"a .{ending} file is not supported; {_MARKED_UP[ending]}"
    return _detect(ending, start.decode(settings.encoding, "ignore").lstrip("\ufeff \t\r\n"))


def _detect(ending: str, start: str) -> Format | str:
    """The format by an accepted extension and the first characters."""
    if start.startswith("<mediawiki") or (start.startswith("<?xml") and "<mediawiki" in start):
        return "mediawiki"
    if ending == "xml":
        if not start:
            return "is empty; get it again"
        return "is XML, but no MediaWiki dump (<mediawiki> does not come first); convert it to text or JSON lines first"
    return _ENDINGS.get(ending) or ("jsonl" if _is_json_line(start) else "text")


def _is_json_line(start: str) -> bool:
    line, end, _ = start.partition("\n")
    if not end and len(line) > _HEAD_BYTES // 4:
        return line.startswith('{"')  # the line is longer than the bytes that were read
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _has_zero_bytes(encoding: str) -> bool:
    return b"\0" in "a".encode(encoding)
