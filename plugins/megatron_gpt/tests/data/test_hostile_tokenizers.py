"""Files that make the library tokenizers panic or abort: each is a message, and the process continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe_core import DataError
from recipe_core.checkpoint.inference.tokenizer import read_tokenizer, read_vocabulary
from recipe_core.data import tokenizer

SOUND: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None, "decoder": None,
    "model": {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"],
    },
}  # fmt: skip


def padding(length: int) -> dict[str, Any]:
    words = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    return {"padding": {"strategy": {"Fixed": length}, **words}}


CHANGED = {
    "aborts": padding(10**12),
    "panics while it encodes": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "panics while it is read": {
        "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5}
    },
    "aborts in unicode tables": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "is refused by the library": {"model": {**SOUND["model"], "merges": ["a z"]}},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_a_message_instead_of_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**SOUND, **CHANGED[name]}))
    for read in (read_tokenizer, read_vocabulary):
        with pytest.raises(DataError) as error:
            read(path)
        assert str(error.value).startswith(f"{path}: is no tokenizer.json that the library tokenizers reads (")
        assert ("it crashes the library: " in str(error.value)) == name.startswith("aborts")


IDS = {"a": 0, "b": 1, "ab": 4_278_124_286}
"""The library writes such a vocabulary with a list of the four billion ids that have no token, and aborts."""


def test_an_id_beyond_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    whole, vocabulary = tmp_path / "tokenizer.json", tmp_path / "vocab.json"
    whole.write_text(json.dumps({**SOUND, "model": {**SOUND["model"], "vocab": IDS}}))
    vocabulary.write_text(json.dumps(IDS))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    for path in (whole, vocabulary):
        with pytest.raises(DataError) as error:
            read_vocabulary(path)
        assert str(error.value).startswith(f"{path}: is no ")
        assert "reads (the id 4,278,124,286 of a token; expected at most 16,777,215)" in str(error.value)
    vocabulary.write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    assert read_vocabulary(vocabulary).encode("ab").ids == [2]


def test_a_sound_file_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(SOUND))
    assert read_tokenizer(path).encode("ab").ids == [2]
    monkeypatch.setattr(tokenizer, "_TRIAL", "raise SystemExit(1)")
    assert read_tokenizer(path).encode("ab").ids == [2]
    path.write_text(json.dumps(SOUND, indent=1))
    with pytest.raises(DataError):
        read_tokenizer(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not found"):
        read_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="expected a regular file"):
        read_tokenizer(tmp_path / "tokenizer.json")
