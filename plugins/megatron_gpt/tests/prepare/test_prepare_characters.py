"""Which characters two libraries split differently, and that texts with them have the ids of tokenizers."""

from __future__ import annotations

import json
import os
import random
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from recipe_core.checkpoint.inference.tokenizer import read_vocabulary
from recipe_megatron_gpt.tokenizer import characters
from recipe_megatron_gpt.tokenizer.characters import Ids, differing_characters
from recipe_megatron_gpt.tokenizer.encoders import _PATTERNS, encoder, load_gigatoken

DATA = Path(os.environ["RECIPE_DATA"])
NEW = "\u088f\u0c5c\u0cdc\ua7ce\ua7f1\U00010940\U00011db6\U00016ea0\U00018d80\U0002b73a\U000323b0\U00032a36\U00033479"
"""Assigned by Unicode 15 to 17: letters for libraries with these versions."""
BESIDE = (
    "a{0}b",
    "Z{0}Z {0}",
    "9{0}9",
    " {0} ",
    "東{0}京",
    "{0}",
    "é{0}{0}é",
    "\n{0}\n",
    "!{0}?",
    "'s{0}'s",
    "e\u0301{0}",
)


def sensitive(splitter: Any) -> str:
    """A tokenizer.json whose ids show where a text was split, for most characters beside most others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    return characters._probe(json.loads(tokenizer.to_str()))


def by_pattern(pattern: str) -> Any:
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), last])


GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def ids_of(content: str) -> Ids:
    tokenizer = Tokenizer.from_str(content)
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]


@pytest.fixture(autouse=True)
def nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path))
    load_gigatoken.cache_clear()


def without(letters: str) -> Callable[[str], Ids]:
    """A library for which ``letters`` are none."""

    def read(content: str) -> Ids:
        known = rf"(?:(?![{letters}])\p{{L}})+"
        other = rf"(?:[{letters}]|[^\s\p{{L}}\p{{N}}])+"
        pattern = rf"'(?:[sdmt]|ll|ve|re)| ?{known}| ?\p{{N}}+| ?{other}|\s+(?!\S)|\s+"
        splitter = json.loads(sensitive(by_pattern(pattern)))["pre_tokenizer"]
        return ids_of(json.dumps({**json.loads(content), "pre_tokenizer": splitter}))

    return read


def test_exactly_the_characters_that_differ_are_found_and_kept() -> None:
    content = sensitive(by_pattern(GPT2))
    found = differing_characters(content, ids_of, without("äжΩ"))
    assert found is not None
    for _ in range(2):
        assert [c for c in map(chr, range(0x500)) if found.in_text(f"x{c}")] == ["ä", "Ω", "ж"]
        assert [found.in_text(text) for text in ("", "abc", "naïve", "a ж 中")] == [False, False, False, True]
        found = differing_characters(content, pytest.fail, pytest.fail)  # all that was asked for is known
        assert found is not None


def test_a_block_is_tried_when_a_text_has_a_character_of_it() -> None:
    asked: list[str] = []

    def noted(content: str) -> Ids:
        ids = ids_of(content)
        return lambda texts: asked.extend(texts) or ids(texts)  # type: ignore[func-returns-value]

    found = differing_characters(sensitive(by_pattern(GPT2)), noted, ids_of)
    assert found is not None
    for text, blocks in (("abc", 0), ("é", 1), ("ñ", 1), ("é中ж", 3), ("\U0010fffd", 4), ("中", 4)):
        assert not found.in_text(text)
        assert len(asked) == blocks


def test_tokenizers_that_know_no_kinds_of_characters_need_no_trial() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    found = differing_characters(tokenizer.to_str(), pytest.fail, pytest.fail)
    assert found is not None
    assert not found.in_text(NEW)
    for part in (normalizers.Replace(Regex(r"\s"), "▁"), normalizers.NFKC(), normalizers.Lowercase()):
        tokenizer.normalizer = part
        assert differing_characters(tokenizer.to_str(), pytest.fail, pytest.fail) is None


def assert_equal(content: str, texts: list[str]) -> int:
    """gigatoken, as it is used, gives the ids of tokenizers; returns for how many texts it would not by itself."""
    reference = [array("i", ids).tobytes() for ids in ids_of(content)(texts)]
    found = encoder("gigatoken", content, "i", False)(texts)
    wrong = [text for text, mine, theirs in zip(texts, found, reference, strict=True) if mine != theirs]
    assert wrong == []
    alone = load_gigatoken(content)
    pairs = zip(texts, reference, strict=True)
    return sum(alone.encode(text).astype("i").tobytes() != theirs for text, theirs in pairs)


def tokenizer_of(name: str) -> str:
    if name == "gpt2":
        if not (DATA / "gpt2" / "vocab.json").is_file():
            pytest.skip(f"{DATA} (RECIPE_DATA) has no gpt2/vocab.json")
        return read_vocabulary(DATA / "gpt2").to_str()
    if name == "like gpt2":
        return sensitive(pre_tokenizers.ByteLevel(add_prefix_space=False))
    return sensitive(by_pattern(sorted(_PATTERNS)[int(name[-1])]))


@pytest.mark.peer
@pytest.mark.parametrize("name", ["gpt2", "like gpt2", "pattern0", "pattern2"])
def test_new_characters_and_some_others_have_the_ids_of_tokenizers(name: str) -> None:
    pytest.importorskip("gigatoken")
    chance = random.Random(3)
    drawn = [chr(chance.choice([*range(0x80, 0xD800), *range(0xE000, 0x34000)])) for _ in range(300)]
    differ = assert_equal(tokenizer_of(name), [form.format(c) for c in (*NEW, *drawn) for form in BESIDE])
    print(f"{name}: gigatoken by itself differs for {differ} texts")


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.parametrize("name", ["gpt2", "like gpt2", "pattern2"])
def test_all_characters_have_the_ids_of_tokenizers(name: str) -> None:
    """Each character alone beside letters, digits, spaces, signs and CJK: a text with many would hide most of them."""
    pytest.importorskip("gigatoken")
    content = tokenizer_of(name)
    numbers = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200), *range(0x34000, 0x110000, 997)]
    assert_equal(content, ["a{0}Z9{0}9 {0} 東{0}京 {0}".format(chr(number)) for number in numbers])
