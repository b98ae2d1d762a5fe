"""Requests that are repeated, within bounds of number and time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from recipe_core.errors import RecipeError
from recipe_core.files.objects.failures import explained, kind_of

if TYPE_CHECKING:
    from recipe_core.files.objects.address import ObjectPath

TRIES = 10
SECONDS = 180.0
"""The most of both for one request. A request that takes too long itself is ended by the client's timeout."""
FIRST_SECONDS = 5.0
"""For a place that never answered, and so is probably wrong."""
_WAIT, _LONGEST_WAIT = 0.1, 15.0
_answered: set[tuple[str, str]] = set()

T = TypeVar("T")


def repeated(place: ObjectPath, request: Callable[[], T]) -> T:
    """Return ``request()``, tried again after 5xx, 429, timeouts, cut bodies and lost connections.

    Raises:
        ObjectError: it failed for good; the message names ``place``.
    """
    began, wait, store = time.monotonic(), _WAIT, (place.scheme, place.bucket)
    for number in range(1, TRIES + 1):
        try:
            answer = request()
        except RecipeError:
            raise
        except Exception as error:
            kind, passed = kind_of(error), time.monotonic() - began
            if kind not in ("other", "unreachable", "credentials"):
                _answered.add(store)
            bound = FIRST_SECONDS if kind == "unreachable" and store not in _answered else SECONDS
            pause = wait * random.uniform(0.5, 1)
            again = kind in ("busy", "short", "unreachable") and number < TRIES and passed + pause < bound
            if kind == "other" and not type(error).__module__.startswith("obstore"):
                raise
            if not again:
                tried = f", {number} tries in {passed:.0f} s" if number > 1 else ""
                raise explained(kind, place.scheme, place.bucket, str(place), error, tried) from error
        else:
            _answered.add(store)
            return answer
        time.sleep(pause)
        wait = min(_LONGEST_WAIT, 2 * wait)
    raise AssertionError
