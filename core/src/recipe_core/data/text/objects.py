"""Inputs in object storage: one object, all below a prefix, or those that match a pattern."""

from __future__ import annotations

from itertools import accumulate

from recipe_core.errors import DataError
from recipe_core.files.objects import ObjectPath
from recipe_core.files.objects.patterns import before_wildcards, fits, has_wildcard
from recipe_core.files.objects.reading import ObjectFile

_SAVED = "state.json"
"""A file of the folders that ``datasets`` saves."""


def input_objects(name: str) -> list[ObjectFile]:
    """Return the objects that an address names, in order of their keys.

    The address is that of an object, a prefix that ends with a whole name (as a folder), or a pattern, in which ``**``
    stands for any number of folders, and which takes all objects below what it matches. Objects with a name that begins
    with a dot, also one of a folder below the prefix, are left out.

    Raises:
        ConfigError: the address is malformed.
        DataError: it names nothing, or a data set that ``datasets`` saved, or the storage cannot be read.
    """
    place = ObjectPath.parse(name)
    if has_wildcard(place.key):
        found = [one for one in _below(before_wildcards(place)) if _is_below_match(one.path.key, place.key)]
        nothing = "no object matches this pattern"
    else:
        found = _below(place) or _object(place)
        nothing = "there is no such object, and none below it"
    if not found:
        raise DataError(f"{name}: {nothing}; name other inputs")
    for one in found:
        if one.name == _SAVED:
            raise DataError(
                f"{one}: belongs to a data set that `datasets` saved, which is only read from a folder of this "
                f"machine; name its files, as in {one.path.with_name('*.arrow')}"
            )
    return found


def _object(place: ObjectPath) -> list[ObjectFile]:
    return [ObjectFile(place, place.stat())] if place.key and place.exists() else []


def _below(prefix: ObjectPath) -> list[ObjectFile]:
    names = [(ObjectFile(path, stat), path.relative_to(prefix)) for path, stat in prefix.objects()]
    return [one for one, name in names if name and not any(part.startswith(".") for part in name.split("/"))]


def _is_below_match(key: str, pattern: str) -> bool:
    return any(fits(folder, pattern) for folder in accumulate(key.split("/"), "{}/{}".format))
