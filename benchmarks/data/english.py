"""English of any size and a tokenizer like GPT-2's, for the benchmarks of preparations.

Encoders remember words that they have seen, so a text that is repeated makes them faster than any real one. Real
English keeps bringing new words: of two texts of equal size, the second has about as many new ones as the first has
words that occur in it once. So the text here is that of Wikipedia (12 MB in $RECIPE_DATA) once, and then again and
again with these words replaced by others, made of the halves of two of them.
"""

from __future__ import annotations

import gzip
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import common

END = "<|endoftext|>"
_WORD = re.compile(r"\w+")
_STRIDE = 7919
"""Places between the two words of which a new one is made, times the number of the copy."""


def documents(dry: bool) -> Iterator[str]:
    """Yield texts without end; with ``dry``, of English that is in Python's library, which needs no real data."""
    texts = _library() if dry else _wikipedia()
    yield from texts
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    once = [word for word, count in counts.items() if count == 1]
    copy = 0
    while True:
        copy += 1
        ends = (once[(place + copy * _STRIDE) % len(once)] for place in range(len(once)))
        new = {word: word[: len(word) // 2] + end[len(end) // 2 :] for word, end in zip(once, ends, strict=True)}
        for text in texts:
            yield _WORD.sub(lambda match, new=new: new.get(match.group(), match.group()), text)  # type: ignore[misc]


@cache
def _wikipedia() -> list[str]:
    with gzip.open(common.real("wiki-sample.jsonl.gz"), "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


@cache
def _library() -> list[str]:
    from recipe_core.data.text import library

    return library.documents(Path(sysconfig.get_paths()["stdlib"]))[:500]


def write_lines(path: Path, size: int, dry: bool) -> int:
    """Write documents with at least ``size`` bytes of text as JSON lines; returns the bytes of text."""
    text = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for document in documents(dry):
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
            text += len(document.encode())
            if text >= size:
                break
    return text


def write_tokenizer(folder: Path, dry: bool) -> None:
    """Write GPT-2's tokenizer, or with ``dry`` a small one, as tokenizer.json and as two lists with a configuration."""
    from recipe_megatron_gpt.data.corpus import train_tokenizer
    from recipe_megatron_gpt.tokenizer.known import read_known_tokenizer

    folder.mkdir()
    if dry:
        train_tokenizer(_library(), 1000).save(str(folder / "tokenizer.json"))
    else:
        content = read_known_tokenizer(common.real("gpt2"), END).content
        (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = model["model"]["vocab"] | {token["content"]: token["id"] for token in model["added_tokens"]}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["model"]["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    specials = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    configuration = {"tokenizer_class": "GPT2TokenizerFast", **specials}
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration), encoding="utf-8")
