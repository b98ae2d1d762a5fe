"""The failure of a rank: the meaning of its error, and the record for the supervisor that started it."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from recipe_core.errors import DiskError, ExitCode, LaunchError, LostRankError, RecipeError
from recipe_core.files import disk_error, is_full, path_error, write_text
from recipe_core.files.documents import read_record

FILE = "RECIPE_FAILURE"
"""Environment variable: path at which this rank writes its :class:`Failure`; only a supervised rank has it."""
SPARE = "RECIPE_FAILURE_SPARE"
"""Environment variable: path of a file in memory, for a full disk of logs."""


@dataclass(frozen=True)
class Failure:
    """The reason why a rank ended."""

    time: float
    """Seconds since the epoch."""
    message: str
    traceback: str | None
    """None for an error that the user can fix: its message is complete."""
    exit_code: int
    lost_peer: bool = False
    """Another rank ended or did not come, and is the cause."""
    printed: bool = False
    """The rank has printed it itself."""

    @property
    def text(self) -> str:
        """The text for the user: the traceback if there is one, else the message."""
        return self.traceback or self.message


# Messages of the backends and their meaning. Gloo and NCCL raise RuntimeError (or its subclasses) without a type or a
# field that tells these apart, so the text has to. The first match counts.
_LATE = (
    "did not take part within train.timeout seconds; its own log says what it was doing. "
    "If it was only slow, raise train.timeout"
)
_MEANINGS: tuple[tuple[str, type[LaunchError], str], ...] = (
    (r"Ranks ([\d, ]+) failed to pass monitoredBarrier", LostRankError, "rank {0} " + _LATE),
    (r"failed to pass monitoredBarrier", LostRankError, "another rank " + _LATE),
    (
        r"Connection closed by peer|Connection reset by peer|Connection was likely closed|Broken pipe|"
        r"remote process exited",
        LostRankError,
        "lost contact with another rank: it ended or its machine cannot be reached; its own log says why",
    ),
    (
        r"Timed out waiting \d+ms|[Tt]imed out after|[Tt]imeout after \d+|[Ww]ait timeout|Application timeout|"
        r"Watchdog caught collective operation timeout|Socket Timeout",
        LostRankError,
        "another rank " + _LATE,
    ),
    (
        r"[Cc]onnection refused|[Cc]onnect(?:ion)? timed out|connectFullMesh failed|No route to host|"
        r"Unable to resolve hostname|failed to connect",
        LaunchError,
        "cannot reach the other ranks; the network device that leads to them can be named with GLOO_SOCKET_IFNAME "
        "(NCCL_SOCKET_IFNAME on NVIDIA devices)",
    ),
)

_OF_CODE = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EBADF)
"""Numbers of errors of the operating system that the code made itself, by a wrong name or argument."""
_OF_DEVICE = re.compile(r"CUDA|NCCL|[Gg]loo|[Pp]rocess ?[Gg]roup|out of memory|can't allocate memory|file write failed")


def explain(error: BaseException) -> RecipeError | None:
    """Translate the error of a failed collective (by its text), of a full disk, or of an unusable path; else None.

    Raise the result ``from error``, which keeps the original message.
    """
    if isinstance(error, OSError):
        if is_full(error):
            return disk_error(error, Path(os.fsdecode(error.filename or "a file, or what is printed")))
        return path_error(error)
    if not isinstance(error, RuntimeError):  # torch.distributed.DistError is one, too
        return None
    for pattern, kind, meaning in _MEANINGS:
        if match := re.search(pattern, str(error)):
            return kind(meaning.format(*match.groups()))
    return None


def no_room(error: RuntimeError, store: str | None) -> DiskError | None:
    """Translate the error of ranks that meet in the file ``store`` on a full disk; None for any other error."""
    full = os.strerror(errno.ENOSPC)
    if store is None or full not in str(error):
        return None
    text = "needed for the ranks to meet, cannot be written"
    return disk_error(OSError(errno.ENOSPC, full), Path(store), text, "set TMPDIR")


def is_of_machine(error: BaseException) -> bool:
    """True for an error that may come from memory, disks, devices or other ranks, not only from the code that raised
    it."""
    if isinstance(error, OSError):
        return error.errno is not None and error.errno not in _OF_CODE
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    if isinstance(error, (NotImplementedError, RecursionError)):
        return False
    # PyTorch has subclasses for errors of devices and of collectives, and older releases only texts.
    return type(error) is not RuntimeError or explain(error) is not None or _OF_DEVICE.search(str(error)) is not None


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error``, its causes and contexts, and theirs."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        link = pending.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            pending += [link.__cause__, link.__context__]


def is_lost_peer(error: BaseException) -> bool:
    """True if ``error`` or one of its causes means that another rank ended or did not come."""
    return any(isinstance(link, LostRankError) or isinstance(explain(link), LostRankError) for link in chain(error))


def exit_code(error: BaseException) -> int:
    """Return the exit code of a process that ends by ``error``: its own, 130 for Ctrl-C, else that of a bug."""
    if isinstance(error, RecipeError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return ExitCode.BUG


def message_of(error: BaseException) -> str:
    """Return the message of an error, or its type if the message is empty."""
    return str(error) or type(error).__name__


def first_line(message: str) -> str:
    """Return the first line of a message, with the second if the first only announces a list."""
    first, *rest = message.splitlines() or [""]
    return f"{first} {rest[0].strip().removeprefix('- ')}" if first.endswith(":") and rest else first


def record_failure(error: BaseException) -> bool:
    """Record for the supervisor why this rank is about to end.

    Returns:
        True if a supervisor will show the error, once for all ranks: print nothing then. False if this process has no
        supervisor (or the disks of the logs and of temporary files are full): print the error as usual.
    """
    file, spare = (os.environ.get(name) for name in (FILE, SPARE))
    if not file:
        return False
    expected = isinstance(error, (RecipeError, KeyboardInterrupt))
    failure = Failure(
        time=time.time(),
        message=message_of(error),
        traceback=None if expected else "".join(traceback.format_exception(error)).rstrip(),
        exit_code=exit_code(error),
        lost_peer=is_lost_peer(error),
    )
    text = json.dumps(asdict(failure), indent=2) + "\n"
    with suppress(DiskError):
        write_text(Path(file), text)
        return True
    with suppress(OSError):
        if spare:
            Path(spare).write_text(text, encoding="utf-8")  # without a temporary file: there may be no room for it
            return True
    return False


@contextmanager
def spares(count: int, folder: Path) -> Iterator[list[Path]]:
    """Provide a file in memory for each rank (:data:`SPARE`); outside Linux, paths in ``folder``."""
    if sys.platform != "linux":
        yield [folder / f"rank-{rank}.error.json" for rank in range(count)]
        return
    with ExitStack() as stack:
        files = [stack.enter_context(os.fdopen(os.memfd_create("recipe-failure"), "rb")) for _ in range(count)]
        yield [Path(f"/proc/{os.getpid()}/fd/{file.fileno()}") for file in files]


def read_failure(path: Path) -> Failure | None:
    """Return what :func:`record_failure` wrote to ``path``; None if it wrote nothing."""
    return read_record(path, Failure)
