"""Small file systems that fill up when a process opens a file of a certain name, and folders that go then."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BYTES, INODES = 24 << 20, 600
"""Capacity of a file system; a run of the campaign needs a third of it."""
PAGE = 4096
KINDS = ("bytes", "inodes", "quota", "file size")
"""``quota``: creating a file gives EDQUOT. ``file size``: no file of the process may grow beyond a limit (EFBIG)."""
_ROOM = ("filler", "fillers", "over-quota")
"""Files that :func:`fill` makes, on the mount or in the folder that holds it."""


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount a file system on ``folder``, for the block."""
    folder.mkdir()
    options = f"size={BYTES},nr_inodes={INODES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        _unmount(folder)


def _unmount(folder: Path, seconds: float = 30) -> None:
    """Unmount once no file is open there: a process that is ending may hold one for a moment."""
    deadline = time.monotonic() + seconds
    while (done := subprocess.run(["umount", str(folder)], capture_output=True, text=True, check=False)).returncode:
        if "busy" not in done.stderr or time.monotonic() > deadline:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
            raise OSError(errno.EBUSY, done.stderr.strip(), str(folder))
        time.sleep(0.1)
    folder.rmdir()


def unavailable() -> str:
    """Return why no file system can be mounted here; empty if one can."""
    if sys.platform != "linux":
        return "tmpfs as Linux has it"
    try:
        with tempfile.TemporaryDirectory() as folder, mounted(Path(folder) / "disk"):
            return ""
    except FileNotFoundError:
        return "no mount command here"
    except subprocess.CalledProcessError as error:
        return f"a tmpfs cannot be mounted here ({error.stderr.decode().strip()})"


def fill(disk: Path, kind: str, left: int) -> None:
    """Leave ``left`` pages, inodes, or pages of a file, of the file system ``disk``."""
    if kind == "bytes":
        _fill_pages(disk, left)
    elif kind == "inodes":
        _fill_inodes(disk, left)
    elif kind == "quota":
        (disk / "over-quota").touch()
    else:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((1 + left) * 4 * PAGE, hard))


def _fill_pages(disk: Path, left: int) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(64 * PAGE)):
            pass
    size = (disk / "filler").stat().st_size
    os.truncate(disk / "filler", max(0, size - size % PAGE - left * PAGE))


def _fill_inodes(disk: Path, left: int) -> None:
    folder = disk / "fillers"
    folder.mkdir(exist_ok=True)
    made: list[Path] = []
    with suppress(OSError):
        while True:
            made.append(folder / str(len(made)))
            made[-1].touch()
    for path in made[max(0, len(made) - 1 - left) :]:
        path.unlink(missing_ok=True)


def make_room(disk: Path) -> None:
    """Remove the files of :func:`fill`."""
    (disk / "filler").unlink(missing_ok=True)
    (disk / "over-quota").unlink(missing_ok=True)
    subprocess.run(["rm", "-rf", str(disk / "fillers")], check=True)


def when_written(disk: Path, place: str, number: int, action: Callable[[], None], fired: Path) -> None:
    """Call ``action`` once, just before this process or a fork of it opens, makes or renames to the file number
    ``number`` (from 0, in each process) whose path below ``disk`` fits ``place``; then make the file ``fired``."""
    pattern, within, left = re.compile(place), False, number
    prefix = f"{disk}/"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal within, left
        if within or not (path := _written(event, arguments)).startswith(prefix):
            return
        if (disk / "over-quota").exists() and event != "os.rename" and not os.path.lexists(path):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
        if not pattern.search(path.removeprefix(prefix)):
            return
        if left:
            left -= 1
            return
        within = True
        try:
            with suppress(FileExistsError):
                os.close(os.open(fired, os.O_CREAT | os.O_EXCL))
                action()
        finally:
            within = False

    sys.addaudithook(hook)


def _written(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the path that an audit event writes to; empty for other events."""
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return ""
    elif event in ("os.mkdir", "os.rename"):
        path = arguments[0] if event == "os.mkdir" else arguments[1]
    else:
        return ""
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
