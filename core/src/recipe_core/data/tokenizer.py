"""Checks of an untrusted tokenizer.json, or of a vocab.json with its merges.txt. No torch here.

The library tokenizers expects files that it wrote: inconsistencies cause a panic, which is not an Exception, and some
(padding to 10^12 tokens, an id of 4 * 10^9) abort the process. Each file is therefore tried once in a separate process,
and used here only if that succeeds; the cache remembers which files have passed.
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
    """Check that the library reads a tokenizer.json and encodes with it; return its text, for ``Tokenizer.from_str``.

    A new file takes a second.

    Raises:
        DataError: the file cannot be read, or the library cannot work with it.
    """
    content = _text(path, "tokenizer.json")
    _Candidate(path, "tokenizer.json", content.encode()).require_readable()
    return content


def require_pair(vocabulary: Path, merges: Path) -> None:
    """Require a vocab.json and a merges.txt that the library can read. New files take a second.

    Raises:
        DataError: a file cannot be read, or the library cannot work with them.
    """
    files = (vocabulary, merges)
    content = b"\0".join(_text(path, path.name).encode() for path in files)
    kind = f"vocabulary with a {merges.name}"
    _Candidate(vocabulary, kind, content, tuple(map(str, files))).require_readable()


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
    """A tokenizer that may crash the library."""

    path: Path
    """Path for messages."""
    kind: str
    content: bytes
    files: tuple[str, ...] = ()
    """The files with ``content``; empty: it is passed to the library as a text."""

    def require_readable(self) -> None:
        marker = home() / "tokenizers" / f"{sha256(self.content).hexdigest()[:32]}.readable"
        try:
            build_once(marker, self._try_and_note)
        except DiskError:  # without a cache, try it each time
            self._try()

    def _try_and_note(self, part: Path) -> None:
        self._try()
        part.write_bytes(b"")

    def _try(self) -> None:
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
    if ended.returncode > 0:  # the exception is written last
        return (lines[-1] if lines else "without a reason")[:_MOST_SHOWN]
    panics = [after for line, after in pairwise(lines) if "panicked at" in line]
    return f"it crashes the library: {(panics or lines or [f'signal {-ended.returncode}'])[0]}"[:_MOST_SHOWN]
