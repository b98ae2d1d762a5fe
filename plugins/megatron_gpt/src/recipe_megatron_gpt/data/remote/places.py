"""The token files that an address of object storage names."""

from __future__ import annotations

from recipe_core.files.objects import ObjectPath
from recipe_core.files.objects.patterns import before_wildcards, fits

ENDINGS = (".bin", ".idx")


def without_ending(place: ObjectPath) -> ObjectPath:
    """The prefix of a token file; any other address unchanged."""
    return place.with_name(place.name.removesuffix(place.suffix)) if place.suffix in ENDINGS else place


def prefixes_in(folder: ObjectPath) -> list[ObjectPath]:
    """The prefixes of the pairs directly below ``folder``, in order of names; as for a folder of files."""
    found = [place for place, _ in folder.children()[1] if not place.name.startswith(".")]
    names = [place for place in found if place.suffix == ".idx"] or [place for place in found if place.suffix == ".bin"]
    return [without_ending(place) for place in names]


def prefixes_of(place: ObjectPath) -> list[ObjectPath]:
    """The prefixes at an address: of a folder, one of the two files, or a prefix, which may not exist."""
    return ([] if place.suffix in ENDINGS else prefixes_in(place)) or [without_ending(place)]


def matching(pattern: ObjectPath) -> list[ObjectPath]:
    """The prefixes that match a pattern: of files, of folders or of paths without their ending; none hidden."""
    folder, found = before_wildcards(pattern), set()
    for place, _ in folder.objects():
        prefix = without_ending(place)
        if place.suffix not in ENDINGS or any(part.startswith(".") for part in place.relative_to(folder).split("/")):
            continue
        named = [place, prefix, prefix.parent] if place.suffix == ".idx" else [place]
        if any(fits(one.key, pattern.key) for one in named):
            found.add(prefix)
    return sorted(found)
