"""Every way to encode gives the ids of the library tokenizers."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from recipe_core.checkpoint.inference.tokenizer import size
from recipe_core.errors import ConfigError
from recipe_index.text import PIECES
from recipe_megatron_gpt.data.corpus import train_tokenizer
from recipe_megatron_gpt.tokenizer import cache, characters, encoders, parts
from recipe_megatron_gpt.tokenizer.encoders import choose, encoder, splits_at_words

TEXTS = [
    "It's the 1st of many texts, isn't it? Well (well), they'll see: 12345 a-b \"quoted\" end.\n\nNext paragraph!\n",
    "naïve café, Zoë's straße; ﬁne²) x½) Ελλάδα, Москва. 東京タワー。 हिन्दी 👩\u200d👧 e\u0301, a\u0301) a\u200d, ",
    "   many   spaces \t tabs\t\n \n  \r\n a\u00a0b \u00a0 c\u2003 d \x1c e \x85 f\u2028 g\ufeff h\u3000 i  ",
] * 40  # fmt: skip


def bpe(pre_tokenizer: Any, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        min_frequency=2,
        show_progress=False,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def split(pattern: str) -> Any:
    first = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, show_progress=False, special_tokens=["[UNK]", "[SEP]"])
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


TOKENIZERS = {
    "gpt2": train_tokenizer(TEXTS, 600),
    "bert": wordpiece(),
    **{f"pattern{n}": bpe(split(pattern)) for n, pattern in enumerate(sorted(encoders._PATTERNS))},
}
DIFFICULT = st.text(st.sampled_from("aZ09 \n\t\r.,'s-()!\"?/:;_é\u0301\u00a0\u2003\x1c²東ǅ٣"), max_size=40)


@pytest.fixture
def no_character_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying all characters with a stand-in for gigatoken would only take long."""
    monkeypatch.setattr(characters, "_find_differing", lambda *_: iter(()))


@pytest.fixture(autouse=True)
def nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path))
    encoders.load_gigatoken.cache_clear()


def ids(tokenizer: Tokenizer, text: str) -> bytes:
    return array("i", tokenizer.encode(text, add_special_tokens=False).ids).tobytes()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_looking_words_up_changes_no_id(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert splits_at_words(tokenizer)
    encode = encoder("pieces", tokenizer.to_str(), "i", False)
    token = "[SEP]" if name == "bert" else "<|endoftext|>"

    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(DIFFICULT | st.text(max_size=30))
    @example("a   b")
    @example("\n \n  a")
    @example("don't DON'T 's 'S x's\n's")
    @example(f"a{token}b {token} {token}{token},c")
    @example(f"  {token} a\u00a0 {token}\n {token}")
    def check(text: str) -> None:
        assert encode([text]) == [ids(tokenizer, text)]

    check()
    texts = ["", *TEXTS[:3], *encoders._TRICKY, ""]
    assert encode(texts) == [ids(tokenizer, text) for text in texts]


def test_cuts_put_together_are_the_text() -> None:
    for text in (*TEXTS[:3], *encoders._TRICKY, "", " ", "a", "\n\n"):
        assert "".join(PIECES.findall(text)) == text
    expected = ["Two", " words", ",", " 3", " (more", ")\nhere", "."]
    assert PIECES.findall("".join(expected)) == expected


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("way", ["plain", "pieces"])
def test_long_texts_have_the_ids_of_the_whole(name: str, way: Any) -> None:
    """Every place for a cut is tried: parts of one character and more."""
    tokenizer = TOKENIZERS[name]
    token = "[SEP]" if name == "bert" else "<|endoftext|>"
    signs = "aZ0 \n\r\t.,'!/(-_é東。\uff0cー한가\u0301\u00a0\u3000"
    many = st.lists(st.sampled_from([*signs, "\n", " ", "\n\n", "'s", token]))
    encode = encoder(way, tokenizer.to_str(), "i", False)

    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(many.map("".join) | DIFFICULT)
    @example("a \nb")
    @example("!\n/a\n/b")
    @example("東京\uff0c東京。\n東京 x")
    @example(f"a {token} b\n{token}\nc.{token}")
    @example(f"a  {token}")
    @example(f"\n {token}")
    def check(text: str) -> None:
        assert "".join(parts.parts(text)) == text
        assert encode([text, "", text]) == [ids(tokenizer, text), b"", ids(tokenizer, text)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "LONG", 1)
        check()
        assert [*parts.parts("Two words, one\nline。東京\uff0c東")] == [
            "Two", " words", ",", " one", "\n", "line", "。東京", "\uff0c東",
        ]  # fmt: skip


def test_a_text_is_not_cut_where_a_token_may_lie_across() -> None:
    assert not parts.can_be_cut(["<s>", "one\ntwo"])
    assert parts.can_be_cut(["<s>", "\n", " x"])
    content = REFUSED["a pattern that nobody has looked at"].to_str()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "LONG", 1)
        assert encoder("plain", content, "i", False)(["many texts and"]) == [
            ids(Tokenizer.from_str(content), "many texts and")
        ]


REFUSED = {
    "space before the text": bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "a pattern that nobody has looked at": bpe(split(r"\w+ \w+|.")),
    "a normalizer": bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFKC()),
    "other words": bpe(pre_tokenizers.Metaspace()),
}


@pytest.mark.parametrize("why", REFUSED)
def test_tokenizers_that_may_join_words_are_left_alone(why: str) -> None:
    content = REFUSED[why].to_str()
    assert not splits_at_words(REFUSED[why])
    assert choose("tokenizers", content, False, TEXTS[:3]) == ("plain", "")


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("<s>", rstrip=True),
        AddedToken("<s>", lstrip=True),
        AddedToken("x", single_word=True),
        "a b",
        "<im-end>",
    ],
)
def test_added_tokens_that_a_cut_would_change_are_noticed(token: Any) -> None:
    tokenizer = train_tokenizer(TEXTS, 300)
    tokenizer.add_special_tokens([token])
    assert not splits_at_words(tokenizer)


def test_special_tokens_are_added_on_demand() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = wordpiece()
    number = tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = TemplateProcessing(single="$0 [SEP]", special_tokens=[("[SEP]", number)])
    content = tokenizer.to_str()
    assert choose("tokenizers", content, True, []) == ("plain", "")
    with_end, without = (array("i", encoder("plain", content, "i", b)(["many texts"])[0]) for b in (True, False))
    assert with_end == without + array("i", [number])


def test_the_size_of_a_vocabulary_is_beyond_its_highest_id() -> None:
    for vocabulary in ({"a": 0, "b": 1}, {"a": 0, "b": 7}, {"a": 1, "b": 2}):
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
        assert size(tokenizer) == max(vocabulary.values()) + 1
        tokenizer.add_special_tokens(["<end>"])
        assert size(tokenizer) == max(tokenizer.get_vocab().values()) + 1


class Giga:
    """A stand-in that gives the ids of the library tokenizers, or wrong ones."""

    wrong = ""

    def __init__(self, content: str) -> None:
        self.tokenizer = Tokenizer.from_str(content)

    @classmethod
    def from_json(cls, content: str) -> Giga:
        if cls.wrong == "refuses":
            raise ValueError("unsupported model\nWordPiece")
        return cls(content)

    def encode(self, text: str) -> Any:
        found = self.tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(found[::-1] if self.wrong == "differs" and "many" in text else found, dtype=np.uint32)


@pytest.mark.usefixtures("no_character_differs")
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("", ""),
        ("differs", "gives other ids than tokenizers for 2 of 12 texts"),
        ("refuses", "does not take this tokenizer (unsupported model)"),
        ("missing", "is not installed (pip install 'recipe-megatron-gpt[gigatoken]')"),
    ],
)
def test_gigatoken_is_used_when_it_gives_the_same_ids(
    wrong: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = None if wrong == "missing" else SimpleNamespace(Tokenizer=Giga)  # None: it cannot be imported
    monkeypatch.setitem(sys.modules, "gigatoken", module)
    monkeypatch.setattr(Giga, "wrong", wrong)
    content = TOKENIZERS["gpt2"].to_str()
    if not problem:
        assert choose("auto", content, False, TEXTS[:3]) == ("gigatoken", "")
        assert choose("tokenizers", content, False, TEXTS[:3]) == ("pieces", "")
        return
    note = "" if wrong == "missing" else f"gigatoken {problem}; tokenizers is used instead"
    assert choose("auto", content, False, TEXTS[:3]) == ("pieces", note)
    with pytest.raises(ConfigError) as caught:
        choose("gigatoken", content, False, TEXTS[:3])
    assert str(caught.value) == f"engine: gigatoken {problem}; set engine=tokenizers"


@pytest.mark.usefixtures("no_character_differs")
def test_what_was_compared_once_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", SimpleNamespace(Tokenizer=Giga))
    content = TOKENIZERS["gpt2"].to_str()
    assert choose("auto", content, False, TEXTS[:3]) == ("gigatoken", "")
    compare = encoders._id_differences
    monkeypatch.setattr(encoders, "_id_differences", lambda *_: pytest.fail("compared again"))
    assert choose("auto", content, False, TEXTS[:3]) == ("gigatoken", "")
    monkeypatch.setattr(encoders, "_id_differences", compare)
    monkeypatch.setattr(Giga, "wrong", "differs")
    encoders.load_gigatoken.cache_clear()
    assert choose("auto", content, False, [*TEXTS[:3], "many others"])[0] == "pieces"
    assert choose("auto", TOKENIZERS["bert"].to_str(), False, TEXTS[:3])[0] == "pieces"
    monkeypatch.setattr(cache, "_version", lambda _: "another")
    assert choose("auto", content, False, TEXTS[:3])[0] == "pieces"


@pytest.mark.peer
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_real_gigatoken_gives_the_same_ids_or_is_not_used(name: str) -> None:
    pytest.importorskip("gigatoken")
    content = TOKENIZERS[name].to_str()
    way, note = choose("auto", content, False, TEXTS[:3])
    if name == "gpt2":
        assert (way, note) == ("gigatoken", "")
    encode = encoder(way, content, "i", False)
    assert encode(TEXTS[:3]) == [ids(TOKENIZERS[name], text) for text in TEXTS[:3]]
