"""A tokenizer.json, or a vocab.json with its merges.txt, that may come from anywhere. No torch here.

The library tokenizers is made for files that it wrote: contradictions inside of one end in a panic, which is no
Exception, and some (padding to 10^12 tokens, an id of 4 * 10^9) abort the process. A file is therefore tried once in a
process that may die, and read here when that one has come through; the cache remembers which files have.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from recipe_core.errors import DataError, DiskError
from recipe_core.files import build_once, home
from recipe_core.files.documents import DocumentError, read_text

_TRIAL = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
except (ImportError, ValueError, OSError):
    pass
from tokenizers import Tokenizer, models
try:
    if files := sys.argv[1:]:
        tokenizer = Tokenizer(models.BPE.from_file(*files))
    else:
        tokenizer = Tokenizer.from_str(sys.stdin.buffer.read().decode("utf-8"))
    last = max(tokenizer.get_vocab().values(), default=0)
    if last >= 1 << 24:  # the library keeps a list of all ids that have no token
        sys.exit(f"the id {last:,} of a token; expected at most {(1 << 24) - 1:,}")
    tokenizer.to_str()
    for text in ("a", "The cat's 12 hats, in caf\\u00e9 \\u4e2d\\n", ""):
        tokenizer.decode(tokenizer.encode(text).ids)
except BaseException as error:
    sys.exit(f"{error}")
"""
_SECONDS = 60
_MOST_SHOWN = 300


def require_tokenizer(path: Path) -> str:
    """The text of a tokenizer.json that the library reads and encodes with, for its ``Tokenizer.from_str``; it takes a
    second for a new file.

    Raises:
        DataError: the file cannot be read, or is none that the library can work with.
    """
    content = _text(path, "tokenizer.json")
    _Candidate(path, "tokenizer.json", content.encode()).come_through()
    return content


def require_pair(vocabulary: Path, merges: Path) -> None:
    """Require a vocab.json and a merges.txt that the library reads; it takes a second for new ones.

    Raises:
        DataError: a file cannot be read, or they are none that the library can work with.
    """
    files = (vocabulary, merges)
    content = b"\0".join(_text(path, path.name).encode() for path in files)
    kind = f"vocabulary with a {merges.name}"
    _Candidate(vocabulary, kind, content, tuple(map(str, files))).come_through()


def _text(path: Path, kind: str) -> str:
    try:
        return read_text(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: not found; expected the path of a {kind}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except DocumentError as error:
        raise DataError(f"{path}: is no {kind} ({error})") from error


@dataclass(frozen=True)
class _Candidate:
    """A tokenizer that the library may not survive."""

    path: Path
    """What messages name."""
    kind: str
    content: bytes
    files: tuple[str, ...] = ()
    """Those that hold ``content``; empty: it is given to the library as it is."""

    def come_through(self) -> None:
        """Try it, unless the cache knows that it has come through."""
        came_through = home() / "tokenizers" / f"{sha256(self.content).hexdigest()[:32]}.readable"
        try:
            build_once(came_through, self._try_and_note)
        except DiskError:  # without a cache it is tried each time
            self._try()

    def _try_and_note(self, part: Path) -> None:
        self._try()
        part.write_bytes(b"")

    def _try(self) -> None:
        """Read, encode and decode in a process of its own."""
        command = [sys.executable, "-c", _TRIAL, *self.files]
        try:
            ended = subprocess.run(command, input=self.content, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            text = f"the library tokenizers did not come to an end with it in {_SECONDS} s"
            raise DataError(f"{self.path}: {text}") from error
        if ended.returncode:
            text = f"is no {self.kind} that the library tokenizers reads ({_reason(ended)})"
            raise DataError(f"{self.path}: {text}")


def _reason(ended: subprocess.CompletedProcess[bytes]) -> str:
    lines = [line.strip() for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
    if ended.returncode > 0:  # what the exception says is written last
        return (lines[-1] if lines else "without a reason")[:_MOST_SHOWN]
    said = [after for line, after in pairwise(lines) if "panicked at" in line]
    return f"it crashes the library: {(said or lines or [f'signal {-ended.returncode}'])[0]}"[:_MOST_SHOWN]
