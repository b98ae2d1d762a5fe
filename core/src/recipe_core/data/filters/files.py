"""Filters that read a model, a list or an index from a file, which datatrove itself would download."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.files import digest

_INDEX = "*.index.hashes"


def digest_of(name: str, option: str, path: str, what: str) -> str:
    """Return the SHA-256 of the file that an option names, or of the files of an index.

    Raises:
        ConfigError: it cannot be read.
    """
    place, wanted = Path(path).expanduser(), f"filters: {name}: {option}: {path}"
    try:
        if option != "index":
            return digest(place)
        files = sorted(place.rglob(_INDEX))
        if not files:
            raise ConfigError(f"{wanted}: there is no file {_INDEX}; expected {what}")
        names = "".join(f"{file.relative_to(place).as_posix()} {digest(file)}\n" for file in files)
    except OSError as error:
        raise ConfigError(f"{wanted}: cannot be read ({error.strerror or error}); expected {what}") from error
    return hashlib.sha256(names.encode()).hexdigest()


@contextmanager
def replaced(target: str, value: Any) -> Iterator[None]:
    """Let ``module:name`` be ``value``."""
    name = target.rpartition(":")[2]
    module = pkgutil.resolve_name(target.rpartition(":")[0])
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _fasttext_model(path: str) -> Any:
    return pkgutil.resolve_name("fasttext.FastText:_FastText")(str(Path(path).expanduser()))


def _language(kind: Any, model: str, options: dict[str, Any]) -> Any:
    made = kind(**options)
    made.model._model = _fasttext_model(model)
    return made


def _fasttext(kind: Any, model: str, options: dict[str, Any]) -> Any:
    made = kind(model_url=model, save_labels_in_metadata=False, **options)
    made._model = _fasttext_model(model)
    known = [label.removeprefix("__label__") for label in made._model.labels]
    for label, _ in [*(made.keep_labels or ()), *(made.remove_labels or ())]:
        if label not in known:
            raise ConfigError(f"filters: fasttext: {model} has no label {label!r} (labels: {', '.join(known[:20])})")
    if not made.keep_labels and not made.remove_labels:
        raise ConfigError(
            "filters: fasttext: set keep_labels or remove_labels, as in [[math, 0.9]]; else nothing drops"
        )
    return made


def _unigram(kind: Any, frequencies: str, options: dict[str, Any]) -> Any:
    place = Path(frequencies).expanduser()
    if place.name != "unigram_freq.csv":
        raise ConfigError(f"filters: unigram: frequencies: {frequencies}: expected a file named unigram_freq.csv")
    with replaced("datatrove.pipeline.filters.unigram_log_probs:cached_assets_path", lambda **_: place.parent):
        return kind(**options)


def _bad_words(kind: Any, words: str, options: dict[str, Any]) -> Any:
    made, place = kind(**options), Path(words).expanduser()
    lines = [line.strip() for line in place.read_text(encoding="utf-8").splitlines()] or [""]
    if "" in lines:
        raise ConfigError(
            f"filters: c4_bad_words: words: {words}: line {lines.index('') + 1} is empty, and would match any document"
        )
    with replaced("datatrove.pipeline.filters.c4_filters:cached_asset_path_or_download", lambda *_, **__: str(place)):
        made._get_badwords(made.default_language)
    return made


def _decontamination(kind: Any, index: str, options: dict[str, Any]) -> Any:
    make_config = pkgutil.resolve_name("datatrove.pipeline.decont:NGramsDecontConfig")
    config = make_config(n_grams=options.pop("n_grams", 12))
    made = kind(index_folder=str(Path(index).expanduser()), config=config, **options)
    made.load_index_hashes()
    return made


FROM_FILE: dict[str, Callable[..., Any]] = {
    "language": _language,
    "fasttext": _fasttext,
    "unigram": _unigram,
    "c4_bad_words": _bad_words,
    "decontamination": _decontamination,
}
"""Functions of the class, the path and the options, which make the filter."""
