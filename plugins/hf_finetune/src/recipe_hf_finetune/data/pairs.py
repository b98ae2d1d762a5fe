"""Labelled sentence pairs without files, from the English text that ships with CPython. No torch here.

Each sentence is paired with its paraphrase, or with the paraphrase of another sentence about the same topic.
"""

from __future__ import annotations

import json
import platform
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from recipe_core import DataError, load_or_build
from recipe_core.data.text import library, sentences
from recipe_core.files import home
from recipe_hf_finetune.data.examples import Examples
from recipe_hf_finetune.data.rewrite import rewritten

VERSION = 2
"""Increment it when a change here changes the pairs, so that old caches are not used."""
_WORDS = range(6, 19)
"""Words per sentence, so that two fit into 64 tokens."""
_PLAIN = re.compile(r"[A-Z][A-Za-z0-9 ,'()_.-]*[a-z)]\.")
"""A sentence of English rather than a line of a table or of code."""
_TOPIC = re.compile(r"[a-z]{4,}")
_SHARED = range(2, 61)
"""Number of sentences in which a topic word occurs."""
_SEED = 20191


def pairs(count: int, cache: Path | None) -> dict[str, Examples]:
    """``count`` training pairs, and a quarter as many validation pairs from other documents; half are equivalent.

    Raises:
        DataError: this Python ships too little text.
        DiskError: ``cache`` cannot be written.
    """
    path = (cache or home()) / f"sentence-pairs-{_fingerprint(count)}.jsonl"
    splits = load_or_build(path, _read, lambda part: _write(part, count))
    return {
        split: Examples(([p[0] for p in rows], [p[1] for p in rows]), [p[2] for p in rows])
        for split, rows in splits.items()
    }


def _fingerprint(count: int) -> str:
    made_from = (platform.python_implementation(), platform.python_version(), count, VERSION, library.VERSION)
    return blake2b(" ".join(map(str, made_from)).encode(), digest_size=6).hexdigest()


def _read(path: Path) -> dict[str, list[tuple[str, str, int]]]:
    splits: dict[str, list[tuple[str, str, int]]] = {}
    *lines, digest = path.read_text(encoding="utf-8").splitlines() or [""]
    if digest != _digest(lines):
        raise DataError(f"{path}: is damaged; remove it to have it made again")
    for line in lines:
        split, first, second, label = json.loads(line)
        splits.setdefault(split, []).append((first, second, label))
    if set(splits) != {"train", "validation"}:
        raise DataError(f"{path}: is not whole; remove it to have it made again")
    return splits


def _digest(lines: Sequence[str]) -> str:
    return json.dumps({"blake2b": blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()})


def _write(path: Path, count: int) -> None:
    counts = {"train": count, "validation": count // 4}
    documents = [prose for text in library.documents(Path(sysconfig.get_paths()["stdlib"])) if (prose := _plain(text))]
    validation = documents[: len(documents) // 5]
    known = {sentence for document in validation for sentence in document}
    rest = [[sentence for sentence in document if sentence not in known] for document in documents[len(validation) :]]
    parts = {"validation": validation, "train": rest}
    lines = []
    for split, needed in counts.items():
        chosen = list(_pairs(parts[split], random.Random(f"{_SEED} {split}")))[:needed]
        if len(chosen) < needed:
            raise DataError(
                f"data.pairs: this Python's text gives {len(chosen):,} pairs for {split}, and {needed:,} are "
                f"wanted; take a smaller data.pairs, or files of your own"
            )
        lines += [json.dumps([split, *pair]) for pair in chosen]
    path.write_text("\n".join([*lines, _digest(lines), ""]), encoding="utf-8")


def _plain(text: str) -> list[str]:
    joined = "\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return [s for s in dict.fromkeys(sentences(joined)) if len(s.split()) in _WORDS and _PLAIN.fullmatch(s)]


def _pairs(documents: Sequence[list[str]], draw: random.Random) -> Iterator[tuple[str, str, int]]:
    # First and second sentence, and label (1: equivalent), both labels in turn, in random order. No sentence comes
    # first twice.
    places = [(number, sentence) for number, document in enumerate(documents) for sentence in document]
    topics = _topics(places)
    order = draw.sample(range(len(places)), len(places))
    label = 1
    for place in order:
        sentence = places[place][1]
        other = sentence if label else _other(place, places, topics, draw)
        changed = rewritten(other, draw) if other else ""
        if changed and changed != other:
            yield (sentence, changed, label) if draw.random() < 0.5 else (changed, sentence, label)
            label = 1 - label


def _topics(places: Sequence[tuple[int, str]]) -> dict[str, list[int]]:
    # Sentences by topic word: a word that is neither very frequent nor in a single sentence.
    places_of: dict[str, list[int]] = {}
    for place, (_, sentence) in enumerate(places):
        for word in dict.fromkeys(_TOPIC.findall(sentence.lower())):
            places_of.setdefault(word, []).append(place)
    return {word: indices for word, indices in places_of.items() if len(indices) in _SHARED}


def _other(
    place: int, places: Sequence[tuple[int, str]], topics: dict[str, list[int]], draw: random.Random
) -> str | None:
    # A sentence of another document that shares a topic word with the one at ``place``.
    document, sentence = places[place]
    words = [word for word in dict.fromkeys(_TOPIC.findall(sentence.lower())) if word in topics]
    if not words:
        return None
    candidates = [places[index][1] for index in topics[draw.choice(words)] if places[index][0] != document]
    return draw.choice(candidates) if candidates else None
