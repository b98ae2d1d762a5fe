"""A rank file is used where it says the same as the tokenizer.json, and only there."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from recipe_megatron_gpt.tokenizer import rank_file
from recipe_megatron_gpt.tokenizer.encoders import load_gigatoken
from recipe_megatron_gpt.tokenizer.rank_file import by_ranks
from recipe_megatron_gpt.tokenizer.vocabulary import read_vocabulary

END = "<|endoftext|>"
Change = Callable[[dict[str, Any]], object]


def like_gpt2(texts: list[str]) -> str:
    """The content of a tokenizer.json in which ids follow the merges, and the end of a document is last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([END])
    content: str = tokenizer.to_str()
    return content


class Tiktoken:
    """Reads a rank file as gigatoken does: a token is made of the two parts that lower ranks leave of it."""

    def __init__(self, path: Path, scheme: str, added: dict[str, int]) -> None:
        assert scheme == "gpt2"
        lines = [line.split() for line in Path(path).read_bytes().splitlines()]
        self.ids = {b64decode(token): int(number) for token, number in lines}
        if list(self.ids.values()) != list(range(len(lines))):
            raise RuntimeError("ranks must be dense")
        self.vocab = {**{number: token for token, number in self.ids.items()}, **{added[t]: t.encode() for t in added}}
        self.merges = [self.parts(token) for token in self.ids if len(token) > 1]

    def parts(self, token: bytes) -> tuple[bytes, ...]:
        found = [token[n : n + 1] for n in range(len(token))]
        while len(found) > 2:
            pairs = [self.ids.get(one + two, len(self.ids)) for one, two in pairwise(found)]
            at = pairs.index(min(pairs))
            found[at : at + 2] = [found[at] + found[at + 1]]
        return tuple(found)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The rank files that were read; nothing is in the cache."""
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    found: list[Path] = []

    def from_tiktoken(path: Path, scheme: str, added: dict[str, int]) -> Tiktoken:
        found.append(path)
        return Tiktoken(path, scheme, added)

    monkeypatch.setitem(
        sys.modules, "gigatoken", SimpleNamespace(Tokenizer=SimpleNamespace(from_tiktoken=from_tiktoken))
    )
    return found


def test_it_holds_all_tokens_and_is_made_once(
    texts: list[str], read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = like_gpt2(texts)
    tokenizer = Tokenizer.from_str(content)
    found = by_ranks(content)
    assert found.merges
    assert found.vocab.keys() == set(range(tokenizer.get_vocab_size()))
    assert found.vocab[tokenizer.token_to_id(END)] == END.encode()
    for number, token in found.vocab.items():
        assert tokenizer.decode([number], skip_special_tokens=False) == token.decode(errors="replace")
    monkeypatch.setattr(rank_file, "_token_ranks", lambda _: pytest.fail("made again"))
    again = by_ranks(content)
    assert (again.vocab, again.merges) == (found.vocab, found.merges)
    assert read[0] != read[1]
    assert read[1].parent == Path(os.environ["RECIPE_CACHE"], "tokenizers")


def test_a_damaged_one_is_made_again(texts: list[str], read: list[Path]) -> None:
    content = like_gpt2(texts)
    vocabulary = by_ranks(content).vocab
    (path,) = Path(os.environ["RECIPE_CACHE"], "tokenizers").glob("*.data")
    good = path.read_bytes()
    path.write_bytes(good.replace(b" 300\n", b" 301\n"))
    assert by_ranks(content).vocab == vocabulary
    assert path.read_bytes() == good


def swap_merges(tokenizer: dict[str, Any]) -> None:
    merges = tokenizer["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def lose_an_id(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.__getitem__)] += 1


OTHERS: dict[str, Change] = {
    "merges in another order than ids": swap_merges,
    "an id that no token has": lose_an_id,
    "a token of characters that stand for no bytes": lambda t: t["model"]["vocab"].update(
        {" ": t["model"]["vocab"].pop("!")}
    ),
    "a normalizer": lambda t: t.update(normalizer={"type": "NFC"}),
    "no splitting": lambda t: t.update(pre_tokenizer=None),
    "a space before the text": lambda t: t["pre_tokenizer"].update(add_prefix_space=True),
    "whole words": lambda t: t["model"].update(ignore_merges=True),
    "another model": lambda t: t["model"].update(type="Unigram"),
    "spaces around an added token": lambda t: t["added_tokens"][0].update(lstrip=True),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_tokenizers_have_none(what: str, texts: list[str], read: list[Path]) -> None:
    tokenizer = json.loads(like_gpt2(texts))
    OTHERS[what](tokenizer)
    content = json.dumps(tokenizer)
    assert by_ranks(content) is None
    before = len(read)
    assert by_ranks(content) is None
    assert len(read) == before


@pytest.mark.peer
def test_the_real_gigatoken_takes_it(texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gigatoken = pytest.importorskip("gigatoken")
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path))
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda _: pytest.fail("read the long way"))
    contents = [like_gpt2(texts)]
    data = os.environ.get("RECIPE_DATA")
    contents += [read_vocabulary(Path(data, "gpt2")).to_str()] if data else []
    for content in contents:
        load_gigatoken.cache_clear()
        tokenizer, giga = Tokenizer.from_str(content), load_gigatoken(content)
        for text in (*texts, f"a{END}b {END} {END}{END},c", "naïve 東京タワー e\u0301 \n\n  x"):
            assert giga.encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    load_gigatoken.cache_clear()
