"""Folders that Hugging Face's ``datasets`` wrote by ``save_to_disk``.

``state.json`` lists the files of the data set in order; the folder may have others, such as the results of ``map``.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from recipe_core.errors import DataError

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def saved_files(folder: Path, names: Collection[str]) -> list[Path] | None:
    """Return the data files of a saved data set, in its order; None if ``folder`` is another folder.

    Args:
        folder: may hold a data set.
        names: of the files in it.

    Raises:
        DataError: it holds several splits, is incomplete, or its state cannot be read.
    """
    if _SPLITS in names:
        splits = _entries(folder / _SPLITS, "splits")
        examples = ", ".join(str(folder / split) for split in splits[:4] if isinstance(split, str))
        raise DataError(f"{folder}: holds the splits of a data set; name those to read ({examples})")
    if not (_INFO in names or (_STATE in names and any(name.endswith(".arrow") for name in names))):
        return None
    if _STATE not in names:
        raise DataError(
            f"{folder}: has a {_INFO} but no {_STATE}, which lists the files of a saved data set; save it again with "
            "save_to_disk, or name its .arrow files themselves"
        )
    state = folder / _STATE
    if _entries(state, "_indices_data_files", optional=True):
        raise DataError(f"{state}: some of the rows are selected by a file of indices; save the data set again")
    files = [_name(state, entry) for entry in _entries(state, "_data_files")]
    if missing := [name for name in files if name not in names]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(f"{state}: lists {missing[0]}{more}, which is not there; copy the whole folder again")
    return [folder / name for name in files]


def _entries(path: Path, key: str, *, optional: bool = False) -> list[Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = content.get(key) if isinstance(content, dict) else None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is damaged ({error}); save the data set again") from error
    if optional and entries is None:
        return []
    if not isinstance(entries, list) or not (entries or optional):
        raise DataError(f"{path}: expected a list under {key!r}, as save_to_disk writes it; save the data set again")
    return entries


def _name(state: Path, entry: object) -> str:
    name = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(name, str) or name != Path(name).name:
        raise DataError(f"{state}: expected the name of a file in this folder, got {name!r}; save the data set again")
    return name
