"""Settings of the inputs, records (documents on their way through a preparation), and counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Format = Literal["text", "jsonl", "mediawiki"]


@dataclass(frozen=True)
class TextInput:
    """Texts to prepare: where they are, and how they are written."""

    inputs: tuple[str, ...] = ()
    """Files, folders (everything below them, in the order of the names) and patterns such as ``data/**/*.jsonl.gz``.
    Files packed by gzip, bzip2 or Zstandard are unpacked while they are read."""
    format: Literal["auto", "text", "jsonl", "mediawiki"] = "auto"
    """``auto``: told from the name's ending, then from the first bytes."""
    documents: Literal["file", "blank_line"] = "file"
    """In plain text, one document is a whole file, or what stands between blank lines."""
    json_key: str = "text"
    """In JSON lines, the key that holds the text."""
    encoding: str = "utf-8"
    """Any text encoding that Python knows."""
    errors: Literal["replace", "strict"] = "replace"
    """Bytes that are no text in ``encoding``: replaced by U+FFFD and counted, with a warning, or an error."""
    on_error: Literal["stop", "skip"] = "stop"
    """A JSON line without a text, or a document that is longer than ``max_document``: an error, or left out and
    counted. A damaged file is always an error."""
    max_document: int = 64_000_000
    """Longest document, line or wiki page, in characters. A process needs some ten bytes of memory for each."""
    most_replaced: float = 0.001
    """The largest share of a file's bytes that may be replaced, where it is more than ten places: a file with more is
    written in another encoding, and is refused."""

    @property
    def keeps_empty(self) -> bool:
        """True where a JSON line whose text is empty or white space is a document, too."""
        return False

    def __post_init__(self) -> None:
        problems = []
        if not self.inputs:
            problems.append("inputs: expected at least one file, folder or pattern")
        if not 0 <= self.most_replaced <= 1:
            problems.append(f"most_replaced: expected 0 to 1, got {self.most_replaced}")
        if problem := _encoding_problem(self.encoding):
            problems.append(f"encoding: {problem}")
        if not self.json_key:
            problems.append("json_key: expected the name of a key, got an empty text")
        if self.max_document < 1:
            problems.append(f"max_document: expected at least 1 character, got {self.max_document}")
        if problems:
            raise ValueError("\n".join(problems))


def _encoding_problem(name: str) -> str | None:
    """The problem with the name of an encoding; None if there is none."""
    try:
        b"a".decode(name)  # codecs.lookup alone would let "hex" and "zlib" pass, which give no text
    except UnicodeError:
        pass  # one byte is no whole character in UTF-16, say
    except (LookupError, ValueError):
        return f"expected a text encoding that Python knows (utf-8, latin-1, cp1252, gb18030, ...), got {name!r}"
    return None


@dataclass(frozen=True)
class Record:
    """One document as it was read: plain text, or the wikitext of a page. Small enough to be sent to a worker."""

    text: str
    path: str
    position: int
    """Counted from 1: the line where it starts in ``path``, or the page of a dump."""
    consumed: int
    """Bytes of all inputs, as they lie on the disk, that were read so far: progress towards ``total_bytes``."""
    title: str | None = None
    """Title of a wiki page; None for other text."""
    namespaces: tuple[str, ...] = ()
    """Names of the dump for the namespaces of files and categories: links to these show no text."""

    def __str__(self) -> str:
        """Its place, for messages: ``wiki.jsonl:7``, or ``dump.xml.bz2, page 7 ('Anarchism')``."""
        if self.title is None:
            return f"{self.path}:{self.position}"
        return f"{self.path}, page {self.position} ({self.title!r})"


@dataclass
class Counts:
    """Numbers of records read and left out; ``records`` counts while it runs."""

    files: int = 0
    documents: int = 0
    replaced: int = 0
    """Places where U+FFFD stands for bytes that were no text, or for half a surrogate pair."""
    skipped: int = 0
    """JSON lines without a text, and documents that were too long (``on_error=skip``)."""
    empty: int = 0
    """Documents and pages whose text is empty or white space, whether they are kept or left out."""
    redirects: int = 0
    other_namespaces: int = 0
    """Pages that are no articles: talk, user, template, category pages and so on."""

    def as_dict(self) -> dict[str, int]:
        """Plain data, for a manifest."""
        return asdict(self)


@dataclass(frozen=True)
class Source:
    """A file that was found, and how it is read."""

    path: Path
    size: int
    """Bytes on the disk."""
    format: Format
    packing: str | None
    """``"gzip"``, ``"bzip2"``, ``"zstd"``, or None."""
