"""Texts and labels of each split of a data set, checked. No torch here."""

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
    """All splits of a data set, and what its labels are."""

    task: Task
    labels: tuple[str, ...]
    """Names in the order of their numbers; of a regression, none."""
    splits: Mapping[str, Examples]
    """``train``, ``validation``, and ``test`` or others where there are any."""


@lru_cache(maxsize=4)
def load(config: TextClassification, cache: Path | None = None) -> Corpus:
    """Read and check every split.

    Args:
        config: the settings of the data.
        cache: where what is made of Python's text is kept.

    Raises:
        DataError: a file is missing or damaged, lacks a column, holds a label of no known name, or nothing; or the hub
            cannot be reached.
    """
    if config.embedded:
        from recipe_hf_finetune.data.pairs import pairs

        return Corpus(PAIRS, PAIRS.labels, pairs(config.pairs, cache))
    files = _files(config)
    if files:
        return _read(config, files)
    from recipe_hf_finetune.data.hub import glue

    return _checked(config, {split: (f"GLUE {config.task}, {split}", found) for split, found in glue(config.task)})


def _files(config: TextClassification) -> dict[str, Path]:
    """The file of each split; none where the data come from the hub."""
    if config.folder is None:
        named = {"train": config.train, "validation": config.validation, "test": config.test}
        return {split: Path(name) for split, name in named.items() if name}
    folder = Path(config.folder)
    if not folder.is_dir():
        raise DataError(f"data.folder: {folder}: there is no such folder")
    files: dict[str, Path] = {}
    for split, names in _NAMES.items():
        there = [folder / f"{name}{ending}" for name in names for ending in ENDINGS]
        for path in [path for path in there if path.is_file()][:1]:
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
    for split, (place, those) in by_split.items():
        if not those:
            raise DataError(f"{place}: holds no sample; expected a heading with the names of columns, and rows")
        lacking = [name for name in (*columns, label) if name not in those[0][1]]
        unlabelled = split not in ("train", "validation") and (lacking == [label] or _hidden(those[0][1].get(label)))
        if lacking and not unlabelled:
            raise _missing(place, lacking, those[0][1])
        texts = tuple([_text(place, number, name, row) for number, row in those] for name in columns)
        numbers = None
        if not unlabelled:
            numbers = [_label(place, number, row.get(label), labels) for number, row in those]
        splits[split] = Examples(texts, numbers)
    return Corpus(task, labels, splits)


def _columns(config: TextClassification, task: Task, where: str, row: Row) -> tuple[tuple[str, ...], str]:
    """The columns of text, and the column of the label."""
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
    """All labels that stand in a file: numbers by their size, names by the alphabet."""
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
    """The number of a label, which is given by its name or by its number."""
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
        "name all labels in data.labels, or mend the file"
    )


def _hidden(value: Any) -> bool:
    """True if a label stands for none, as in GLUE's test files."""
    return value is None or _plain(value) in ("", "-1")


def _plain(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()
