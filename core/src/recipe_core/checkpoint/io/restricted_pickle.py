"""Restricted unpickling of untrusted files: a pickle gets only the globals that the caller has for it.

A pickle is a program. It can do harm only through the functions and classes that it looks up by name, so a reader that
refuses every name but a few harmless ones is safe (https://docs.python.org/3/library/pickle.html, "Restricting
Globals").
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from recipe_core.errors import CheckpointError
from recipe_core.files.documents import DocumentError, read_data

MOST_PICKLE = 1 << 30
"""Largest size in bytes of a pickle without tensors; a checkpoint of 100,000 shards has about 30 MB of metadata."""
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_BUFFERS = ("BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER")


class ForbiddenGlobalError(pickle.UnpicklingError):
    """A pickle looks up the forbidden global ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"forbidden global {name}")
        self.name = name


class Inert:
    """Placeholder for an object of a class that is not looked up: name and arguments, no code.

    Foreign files hold settings and random number states with the weights, as objects of packages that are not
    installed here.
    """

    name = ""
    """Module and name of the class."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state


def stand_in(name: str) -> type[Inert]:
    """Return a placeholder class for the global ``name``."""
    return type("Inert", (Inert,), {"name": name})


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], find: Callable[[str, str], Any]) -> None:
        super().__init__(file)
        self._find = find

    def find_class(self, module: str, name: str) -> Any:
        if (permitted := self._find(module, name)) is None:
            raise ForbiddenGlobalError(f"{module}.{name}")
        return permitted


def read_pickle(path: Path, find: Callable[[str, str], Any]) -> Any:
    """Unpickle ``path``. ``find(module, name)`` returns the class or function for a global; None: it is forbidden.

    Raises:
        CheckpointError: the file is missing or damaged, or names a forbidden global (which is not called).
    """
    try:
        data = read_data(path, MOST_PICKLE)
        _require_bounded(data)
        return _Unpickler(io.BytesIO(data), find).load()
    except ForbiddenGlobalError as error:
        raise CheckpointError(forbidden(path, error.name)) from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    except DocumentError as error:
        raise CheckpointError(f"{path}: {error}; it is no pickle of a checkpoint") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(f"{path}: damaged, not readable as a pickle ({type(error).__name__}: {error})") from error


def _require_bounded(data: bytes) -> None:
    """Refuse a pickle that needs far more memory than its size: one changed byte can request 64 GB of entries."""
    for code, argument, _ in pickletools.genops(data):
        if code.name in _PUTS and isinstance(argument, int) and argument > len(data):
            raise pickle.UnpicklingError(f"entry {argument:,} in a pickle of {len(data):,} bytes")
        if code.name in _BUFFERS:
            raise pickle.UnpicklingError(f"{code.name}, which no checkpoint needs")


def forbidden(path: Path, name: str) -> str:
    """Return the message for a pickle that names a forbidden global."""
    return (
        f"{path}: refused, since it names {name}, which no checkpoint needs and which could run any program. "
        "Nothing of it was run; get the checkpoint from someone you trust"
    )


def unreadable(path: Path, error: Exception) -> str:
    """Return the message for a file that torch.load(weights_only=True) refuses."""
    text = str(error)
    if isinstance(error, pickle.UnpicklingError) and (match := re.search(r"GLOBAL ([\w.]+)", text)):
        return forbidden(path, match[1])
    return f"{path}: damaged, or no file of weights ({type(error).__name__}: {text.splitlines()[0] if text else ''})"
