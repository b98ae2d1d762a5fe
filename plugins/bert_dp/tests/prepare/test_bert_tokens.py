# ruff: noqa: RUF001 - letters that look alike are what is tested here
"""Token ids equal to those of Hugging Face's tokenizers, for each document."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from recipe_bert_dp.data.vocabulary import Vocabulary

ODD = [
    "",
    " ",
    "\u00a0\u2003",
    "a\u00adb \u200bc \ufeffd",
    "Ünïcödé ÅNGSTRÖM ﬁ ǅ İstanbul ẞ ΌΣΟΣ",
    "e\u0301te\u0301 n\u0303",
    "東京は日本。漢字kanji𠀀",
    "“quoted”—dash…",
    "[MASK] and [SEP][CLS]x [mask]",
    "a[UNK]b[",
    "x" * 101,
    "x" * 100,
    "é" * 101,
    "tab\tnew\nline\r\x0b\x0c\x1c\x7fend",
    "\x00nul\ufffd",
    "don't can't U.S.A. $5.00 50% a_b c#d",
    "\u0301 combining first",
    "emoji 👩‍👩‍👧 flags 🇩🇪",
    "नमस्ते สวัสดี שלום مرحبا",
    "ＦＵＬＬ ｗｉｄｔｈ",
    "\u2028line\u2029sep",
    "a\u0338<\u0338",
    "CamelCASE XML2json",
]


@pytest.mark.peer
@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_equal_transformers(data: Path, tmp_path: Path, lowercase: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers' tokenizer")
    path = data / "bert" / "vocab.txt"
    (tmp_path / "vocab.txt").write_bytes(path.read_bytes())
    peer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"), do_lower_case=lowercase)
    equal(path, lowercase, data, lambda text: peer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_equal_tokenizers(data: Path, lowercase: bool) -> None:
    from tokenizers import BertWordPieceTokenizer

    path = data / "bert" / "vocab.txt"
    peer = BertWordPieceTokenizer(str(path), lowercase=lowercase)
    equal(path, lowercase, data, lambda text: peer.encode(text, add_special_tokens=False).ids, step=7)


def equal(path: Path, lowercase: bool, data: Path, peer: object, step: int = 1) -> None:
    with gzip.open(data / "wiki-sample.jsonl.gz", "rt", encoding="utf-8") as file:
        documents = [json.loads(line)["text"] for line in file][::step]
    texts = [*ODD, *documents]
    ids, lengths = Vocabulary.read(path, lowercase).wordpiece().encode(texts)
    at = 0
    for text, length in zip(texts, lengths.tolist(), strict=True):
        assert ids[at : at + length].tolist() == peer(text), text[:80]  # type: ignore[operator]
        at += length
