"""A tokenizer.json that may come from anywhere. No torch here.

The library tokenizers is made for files that it wrote: contradictions inside of one end in a panic, which is no
Exception, and some (padding to 10^12 tokens) abort the process. A file is therefore tried once in a process that may
die, and read here when that one has come through; the cache remembers which files have.
"""

from __future__ import annotations

import subprocess
import sys
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
from tokenizers import Tokenizer
try:
    tokenizer = Tokenizer.from_str(sys.stdin.buffer.read().decode("utf-8"))
    tokenizer.get_vocab()
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
    try:
        content = read_text(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: not found; expected the path of a tokenizer.json") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except DocumentError as error:
        raise DataError(f"{path}: is no tokenizer.json ({error})") from error
    came_through = home() / "tokenizers" / f"{sha256(content.encode()).hexdigest()[:32]}.readable"
    try:
        build_once(came_through, lambda part: _try(path, content, part))
    except DiskError:  # without a cache it is tried each time
        _try(path, content, None)
    return content


def _try(path: Path, content: str, note: Path | None) -> None:
    """Read, encode and decode in a process of its own; write ``note`` when it came through."""
    command = [sys.executable, "-c", _TRIAL]
    try:
        ended = subprocess.run(command, input=content.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{path}: the library tokenizers did not come to an end with it in {_SECONDS} s") from error
    if ended.returncode:
        raise DataError(f"{path}: is no tokenizer.json that the library tokenizers reads ({_reason(ended)})")
    if note is not None:
        note.write_bytes(b"")


def _reason(ended: subprocess.CompletedProcess[bytes]) -> str:
    lines = [line.strip() for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
    if ended.returncode > 0:  # what the exception says is written last
        return (lines[-1] if lines else "without a reason")[:_MOST_SHOWN]
    said = [after for line, after in pairwise(lines) if "panicked at" in line]
    return f"it crashes the library: {(said or lines or [f'signal {-ended.returncode}'])[0]}"[:_MOST_SHOWN]
