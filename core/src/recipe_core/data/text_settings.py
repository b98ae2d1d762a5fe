"""Settings of the inputs of a preparation, its records (documents) and counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from recipe_core.files.objects.reading import ObjectFile

Format = Literal["text", "jsonl", "mediawiki", "parquet", "arrow"]


@dataclass(frozen=True)
class TextInput:
    """Texts to prepare: their location and format."""

    inputs: tuple[str, ...] = field(default=(), metadata={"remote": "objects"})
    """Files, folders (with all subfolders, in order of names) and patterns such as ``data/**/*.jsonl.gz``; also in
    object storage, as ``s3://bucket/dump``. Files compressed by gzip, bzip2 or Zstandard are decompressed while they
    are read."""
    format: Literal["auto", "text", "jsonl", "mediawiki"] = "auto"
    """``auto``: determined by the file extension, then by the first bytes. Parquet and Arrow files are known by their
    first bytes under any setting."""
    documents: Literal["file", "blank_line"] = "file"
    """In plain text, one document is a whole file, or a block between blank lines."""
    json_key: str = "text"
    """In JSON lines, the key that holds the text; in Parquet and Arrow files, the column."""
    encoding: str = "utf-8"
    """Any text encoding of Python."""
    errors: Literal["replace", "strict"] = "replace"
    """Bytes that are invalid in ``encoding``: replaced by U+FFFD and counted, with a warning, or an error."""
    on_error: Literal["stop", "skip"] = "stop"
    """A JSON line or a row without a text, or a document longer than ``max_document``: an error, or skipped and
    counted. A damaged file is always an error."""
    max_document: int = 64_000_000
    """Maximum length of a document, line or wiki page, in characters. A process needs about ten bytes of memory per
    character."""
    most_replaced: float = 0.001
    """Maximum share of a file's bytes that may be replaced. A file with more than ten places and a larger share has
    another encoding and is refused."""

    @property
    def keeps_empty(self) -> bool:
        """True if a JSON line or a row whose text is empty or white space is a document."""
        return False

    @property
    def numbers_documents(self) -> bool:
        """True if ``Record.document`` is set."""
        return False

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ValueError("\n".join(problems))

    def problems(self) -> list[str]:
        """Return the problems of the settings, a line for each; a subclass adds its own to these."""
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
        return problems


def _encoding_problem(name: str) -> str | None:
    try:
        b"a".decode(name)  # codecs.lookup alone would accept "hex" and "zlib", which yield no text
    except UnicodeError:
        pass  # one byte is not a whole character in UTF-16
    except (LookupError, ValueError):
        return f"expected a text encoding that Python knows (utf-8, latin-1, cp1252, gb18030, ...), got {name!r}"
    return None


@dataclass(frozen=True)
class Record:
    """One document as read: plain text, or the wikitext of a page. Small enough to be sent to a worker."""

    text: str
    path: str
    position: int
    """Number, from 1, of the line in ``path`` where it starts, of the row, or of the page in a dump."""
    consumed: int
    """Bytes of all inputs on disk that were read so far: progress towards ``total_bytes``."""
    title: str | None = None
    """Title of a wiki page; None for other texts."""
    namespaces: tuple[str, ...] = ()
    """The dump's names of the file and category namespaces: links to these show no text."""
    document: tuple[str, int] | None = None
    """The file, and the document's number from 1 among those read of it; None unless the settings ask for it."""

    def __str__(self) -> str:
        """Return its location, for messages: ``wiki.jsonl:7``, or ``dump.xml.bz2, page 7 ('Anarchism')``."""
        if self.title is None:
            return f"{self.path}:{self.position}"
        return f"{self.path}, page {self.position} ({self.title!r})"


@dataclass
class Counts:
    """Numbers of records that were read and skipped; ``records`` counts while it runs."""

    files: int = 0
    documents: int = 0
    replaced: int = 0
    """Places where U+FFFD replaces invalid bytes or half a surrogate pair."""
    skipped: int = 0
    """JSON lines and rows without a text, and documents that are too long (``on_error=skip``)."""
    empty: int = 0
    """Documents and pages whose text is empty or white space, whether kept or skipped."""
    redirects: int = 0
    other_namespaces: int = 0
    """Pages other than articles: talk, user, template and category pages and so on."""
    replaced_in_pieces: dict[str, int] = field(default_factory=dict)
    """:attr:`replaced` by path, in files of which only a piece was read."""
    documents_in_pieces: dict[str, int] = field(default_factory=dict)
    """:attr:`documents` by path, in such files; empty unless the settings number documents."""

    def as_dict(self) -> dict[str, int]:
        """Return the numbers, as plain data for a manifest."""
        numbers = asdict(self)
        del numbers["replaced_in_pieces"], numbers["documents_in_pieces"]
        return numbers


@dataclass(frozen=True)
class Source:
    """An input file, and how it is read."""

    path: Path | ObjectFile
    size: int
    """Bytes, as stored."""
    format: Format
    packing: str | None
    """``"gzip"``, ``"bzip2"``, ``"zstd"``, or None."""
    start: int = 0
    """First byte to read."""
    stop: int | None = None
    """Byte to stop before; None: the end."""

    @property
    def has_columns(self) -> bool:
        """True for Parquet and Arrow files, whose documents are rows."""
        return self.format in ("parquet", "arrow")

    @property
    def bytes(self) -> int:
        """Bytes on disk to read."""
        return (self.size if self.stop is None else self.stop) - self.start

    @property
    def is_whole(self) -> bool:
        """True if the whole file is read."""
        return self.bytes == self.size

    def __str__(self) -> str:
        """Return its path, and where the piece begins, from which messages then count lines."""
        return f"{self.path} from byte {self.start:,}" if self.start else str(self.path)
