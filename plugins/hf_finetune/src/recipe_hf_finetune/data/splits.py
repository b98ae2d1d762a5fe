"""Texts and labels of each split of a data set, validated. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from recipe_core import DataError
from recipe_hf_finetune.data.examples import Examples
from recipe_hf_finetune.data.files import ENDINGS, Row, rows
from recipe_hf_finetune.data.tasks import GLUE, OWN, PAIRS, Task
from recipe_hf_finetune.settings import TextClassification

_NAMES = {
    "train": ("train", "msr_paraphrase_train"),
    "validation": ("validation", "dev", "valid", "msr_paraphrase_test"),
    "test": ("test",),
}
_USUAL = (("sentence1", "sentence2"), ("sentence",), ("text",))
_MICROSOFT = (("#1 String", "#2 String"), "Quality")
"""Columns of text and label in Microsoft's files of MRPC."""


@dataclass(frozen=True)
class Corpus:
    """All splits of a data set, and its labels."""

    task: Task
    labels: tuple[str, ...]
    """Names in the order of their numbers; empty for a regression."""
    splits: Mapping[str, Examples]
    """``train``, ``validation``, and optionally ``test`` or others."""


@lru_cache(maxsize=4)
def load(config: TextClassification, cache: Path | None = None) -> Corpus:
    """Read and check every split.

    Args:
        config: the settings of the data.
        cache: folder for pairs made from Python's text.

    Raises:
        DataError: a file is missing, damaged or empty, lacks a column, or has an unknown label; or the hub cannot be
            reached.
    """
    if config.embedded:
        from recipe_hf_finetune.data.pairs import pairs

        return Corpus(PAIRS, PAIRS.labels, pairs(config.pairs, cache))
    files = _files(config)
    if files:
        return _read(config, files)
    from recipe_hf_finetune.data.hub import glue

    return _checked(config, {split: (f"GLUE {config.task}, {split}", table) for split, table in glue(config.task)})


def _files(config: TextClassification) -> dict[str, Path]:
    if config.folder is None:
        named = {"train": config.train, "validation": config.validation, "test": config.test}
        return {split: Path(name) for split, name in named.items() if name}
    folder = Path(config.folder)
    if not folder.is_dir():
        raise DataError(f"data.folder: {folder}: there is no such folder")
    files: dict[str, Path] = {}
    for split, names in _NAMES.items():
        candidates = [folder / f"{name}{ending}" for name in names for ending in ENDINGS]
        for path in [path for path in candidates if path.is_file()][:1]:
            files[split] = path
    if missing := [split for split in ("train", "validation") if split not in files]:
        wanted = " and no ".join("file " + " or ".join(f"{name}.*" for name in _NAMES[split]) for split in missing)
        raise DataError(
            f"data.folder: {folder}: holds no {wanted} (.* is one of {', '.join(ENDINGS)}); name the files by "
            "data.train and data.validation"
        )
    return files


def _read(config: TextClassification, files: Mapping[str, Path]) -> Corpus:
    return _checked(config, {split: (str(path), list(rows(path))) for split, path in files.items()})


def _checked(config: TextClassification, by_split: Mapping[str, tuple[str, list[tuple[int, Row]]]]) -> Corpus:
    task = GLUE.get(config.task, OWN)
    where, first = by_split["train"]
    if not first:
        raise DataError(f"{where}: holds no sample; expected a heading with the names of columns, and rows")
    columns, label = _columns(config, task, where, first[0][1])
    if lacking := [name for name in (*columns, label) if name not in first[0][1]]:
        raise _missing(where, lacking, first[0][1])
    labels = config.labels or task.labels
    if not labels and not task.regression:
        labels = _labels(where, (row.get(label) for _, row in first))
    splits = {}
    for split, (place, table) in by_split.items():
        if not table:
            raise DataError(f"{place}: holds no sample; expected a heading with the names of columns, and rows")
        lacking = [name for name in (*columns, label) if name not in table[0][1]]
        unlabelled = split not in ("train", "validation") and (lacking == [label] or _hidden(table[0][1].get(label)))
        if lacking and not unlabelled:
            raise _missing(place, lacking, table[0][1])
        texts = tuple([_text(place, number, name, row) for number, row in table] for name in columns)
        numbers = None
        if not unlabelled:
            numbers = [_label(place, number, row.get(label), labels) for number, row in table]
        splits[split] = Examples(texts, numbers)
    return Corpus(task, labels, splits)


def _columns(config: TextClassification, task: Task, where: str, row: Row) -> tuple[tuple[str, ...], str]:
    if not config.columns and all(name in row for name in (*_MICROSOFT[0], _MICROSOFT[1])):
        return _MICROSOFT[0], config.label or _MICROSOFT[1]
    columns = config.columns or task.columns
    if not columns:
        columns = next((usual for usual in _USUAL if all(name in row for name in usual)), ())
    if not columns:
        raise DataError(
            f"{where}: has the columns {', '.join(row)}, and none of sentence1 and sentence2, sentence, or text; "
            "say which hold text: data.columns=[NAME] or data.columns=[NAME,NAME]"
        )
    return columns, config.label or "label"


def _missing(where: str, names: Sequence[str], row: Row) -> DataError:
    return DataError(
        f"{where}: lacks the column{'s' * (len(names) > 1)} {', '.join(names)}; it has {', '.join(row)}. Say which to "
        "take: data.columns=[NAME] or [NAME,NAME], data.label=NAME"
    )


def _labels(where: str, values: Iterable[Any]) -> tuple[str, ...]:
    # Numbers ascending, then names alphabetically.
    labels = {_plain(value) for value in values}
    if len(labels) < 2:
        only = ", ".join(repr(value) for value in labels)
        raise DataError(f"{where}: all samples have the label {only}; expected two or more different labels")
    if len(labels) > 1000:
        raise DataError(
            f"{where}: has {len(labels):,} different labels, which are values rather than labels; for a regression set "
            "data.task=stsb and name the columns (data.columns, data.label)"
        )
    return tuple(
        sorted(labels, key=lambda value: (not value.isdecimal(), int(value) if value.isdecimal() else 0, value))
    )


def _text(where: str, number: int, name: str, row: Row) -> str:
    text = row.get(name)
    if not isinstance(text, str):
        raise DataError(f"{where}, line {number}: {name}: expected text, got {text!r}")
    return text


def _label(where: str, number: int, value: Any, labels: Sequence[str]) -> int | float:
    if not labels:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise DataError(f"{where}, line {number}: label: expected a number, got {value!r}") from None
    text = _plain(value)
    if text in labels:
        return labels.index(text)
    if text.isdecimal() and int(text) < len(labels):
        return int(text)
    raise DataError(
        f"{where}, line {number}: label {text!r} is none of {', '.join(labels)}, nor a number below {len(labels)}; "
        "name all labels in data.labels, or fix the file"
    )


def _hidden(value: Any) -> bool:
    # GLUE's test files have -1 for labels that are not published.
    return value is None or _plain(value) in ("", "-1")


def _plain(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()
