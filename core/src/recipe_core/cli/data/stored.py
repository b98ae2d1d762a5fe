"""``output=s3://bucket/prefix`` of ``recipe prepare``. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recipe_core.errors import RecipeError
from recipe_core.files.objects import is_address

Made = tuple[Mapping[str, Any], str]
"""The manifest of a data set, and where it is."""


def address_in(words: Sequence[str]) -> str:
    """Return the address that the setting ``output`` names; empty if it names a folder of this machine."""
    values = [word.partition("=")[2] for word in words if word.startswith("output=")]
    return values[-1] if values and is_address(values[-1]) else ""


def make_stored(
    address: str, command: Sequence[str], made: Callable[[str], object], *, overwrite: bool = False
) -> Made:
    """Make a data set here, and copy it to ``address``; return its manifest, and the address.

    Args:
        address: a prefix of object storage.
        command: the words that say what is made; the same ones continue an interrupted command.
        made: makes the data set in the folder that it is called with.
        overwrite: an earlier data set is replaced.

    Raises:
        ConfigError: something is there that must not be replaced.
        ObjectError: the storage cannot be read and written.
    """
    from recipe_core.data.prepare.stored import StoredOutput

    output = StoredOutput.of(address, command, overwrite=overwrite)
    with output.claimed():
        if not output.is_made():
            try:
                made(str(output.folder))
            except RecipeError:
                output.give_up()
                raise
        return output.publish(), str(output.place)


def overwrites(words: Sequence[str]) -> bool:
    """True if the words set ``overwrite``; a wrong value is refused where the settings are read."""
    values = [word.partition("=")[2] for word in words if word.startswith("overwrite=")]
    return bool(values) and values[-1].lower() in ("true", "yes", "on")
