"""Requests that are repeated, within bounds of number and time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from recipe_core.errors import RecipeError
from recipe_core.files.objects.failures import Kind, explained, kind_of

if TYPE_CHECKING:
    from recipe_core.files.objects.address import ObjectPath

TRIES = 10
SECONDS = 180.0
"""The most of both for one request. A request that takes too long itself is ended by the client's timeout."""
FIRST_SECONDS = 5.0
"""For a place that never answered, and so is probably wrong."""
_WAIT, _LONGEST_WAIT = 0.1, 15.0
_answered: set[tuple[str, str]] = set()
_unreachable: set[tuple[str, str]] = set()
"""Buckets that never answered: further requests to them are tried once, since a command makes several."""

_SILENT = ("unreachable", "timeout")
T = TypeVar("T")


def repeated(place: ObjectPath, request: Callable[[], T]) -> T:
    """Return ``request()``, tried again after 5xx, 429, timeouts, cut bodies and lost connections.

    Raises:
        ObjectError: it failed for good; the message names ``place``.
    """
    began, wait, store = time.monotonic(), _WAIT, (place.scheme, place.bucket)
    number = 1
    while True:
        try:
            answer = request()
        except RecipeError:
            raise
        except Exception as error:
            kind, passed, pause = kind_of(error), time.monotonic() - began, wait * random.uniform(0.5, 1)
            if kind == "other" and not type(error).__module__.startswith("obstore"):
                raise
            if number == TRIES or passed + pause >= _bound(kind, store):
                _unreachable.update({store} - _answered if kind in _SILENT else ())
                tried = f", {number} tries in {passed:.0f} s" if number > 1 else ""
                raise explained(kind, place.scheme, place.bucket, str(place), error, tried) from error
        else:
            _answered.add(store)
            return answer
        time.sleep(pause)
        number, wait = number + 1, min(_LONGEST_WAIT, 2 * wait)


def _bound(kind: Kind, store: tuple[str, str]) -> float:
    # seconds for which a request that failed in this way is repeated
    if kind in _SILENT:
        if store in _answered:
            return SECONDS
        return 0.0 if store in _unreachable else FIRST_SECONDS
    if kind not in ("other", "credentials"):
        _answered.add(store)
    return SECONDS if kind in ("busy", "short") else 0.0
