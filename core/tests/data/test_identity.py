"""Digests of data and tokenizers, and what is made of their differences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from recipe_core import DataError
from recipe_core.data.identity import (
    acceptance_code,
    content_digest,
    differences,
    identity_of_files,
    require_accepted,
    tokenizer_digest,
)
from recipe_core.data.prepare.manifest import NAME, file_facts, manifest_text
from recipe_core.errors import ConfigError

BPE: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [{"id": 0, "content": "<end>", "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": None, "fuse_unk": False, "vocab": {"a": 1, "b": 2, "ab": 3}, "merges": ["a b"]},
}


def texts(**changes: Any) -> dict[str, str]:
    return {"tokenizer.json": json.dumps({**BPE, **changes}, indent=2)}


def model(**changes: Any) -> dict[str, Any]:
    return {**BPE["model"], **changes}


def test_names_do_not_count_and_every_byte_of_a_small_file_does(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(bytes(range(256)) * 40)
    two.write_bytes(one.read_bytes())
    assert content_digest([one]) == content_digest([two])
    for place in (0, 5_000, 10_239):
        content = bytearray(one.read_bytes())
        content[place] ^= 1
        two.write_bytes(content)
        assert content_digest([one]) != content_digest([two])
    assert content_digest([]) == ""


def test_of_a_large_file_samples_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(100 << 30)
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda number, size, at: read.append(size) or pread(number, size, at))
    before = content_digest([path])
    assert sum(read) == 1 << 20
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert content_digest([path]) != before
    with path.open("r+b") as file:
        file.truncate((100 << 30) + 1)
    assert content_digest([path]) != before


def test_files_of_another_size_than_their_manifest_lists_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    (tmp_path / NAME).write_text(manifest_text({"files": file_facts(tmp_path, ["a"])}))
    known = identity_of_files([tmp_path / "a"])
    assert known.manifest
    (tmp_path / "a").write_bytes(b"4321")  # not hashed, but sampled
    changed = identity_of_files([tmp_path / "a"])
    assert changed.manifest == known.manifest
    assert changed.content != known.content
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(DataError, match=r"a: has 5 bytes instead of 4, as .*manifest\.json lists it"):
        identity_of_files([tmp_path / "a"])


def test_a_manifest_of_another_program_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    (tmp_path / NAME).write_text('{"files": ["a"]}')
    assert identity_of_files([tmp_path / "a"]).manifest == ""


@pytest.mark.parametrize(
    "same",
    [
        texts(version="2.0", padding={"length": 5}, truncation={"max_length": 3}, decoder=None, post_processor={}),
        texts(model=model(merges=[["a", "b"]])),
        texts(model={name: value for name, value in model().items() if name not in ("dropout", "fuse_unk")}),
        {"tokenizer.json": json.dumps(BPE), "tokenizer_config.json": "{}"},
    ],
)
def test_the_same_ids_have_the_same_digest(same: dict[str, str]) -> None:
    assert tokenizer_digest(same) == tokenizer_digest(texts())


@pytest.mark.parametrize(
    "other",
    [
        texts(model=model(vocab={"a": 2, "b": 1, "ab": 3})),
        texts(model=model(merges=["b a"])),
        texts(normalizer={"type": "Lowercase"}),
        texts(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True}),
        texts(added_tokens=[]),
        {},
    ],
)
def test_other_ids_have_another_digest(other: dict[str, str]) -> None:
    assert tokenizer_digest(other) != tokenizer_digest(texts())


def test_a_vocabulary_is_its_pieces_and_whether_letters_become_small() -> None:
    plain = {"vocab.txt": "[UNK]\na\nb\n"}
    small, large = (
        {**plain, "tokenizer_config.json": json.dumps({"do_lower_case": lower, "model_max_length": 5})}
        for lower in (True, False)
    )
    assert tokenizer_digest(plain) == tokenizer_digest(small) != tokenizer_digest(large)
    assert tokenizer_digest({"vocab.txt": "[UNK]\r\na\r\nb\r\n"}) == tokenizer_digest(plain)


def test_what_one_side_does_not_know_is_not_compared() -> None:
    old = {"content": "a" * 32, "tokenizer": "b" * 32, "order": {"split": [1.0], "sequence": 8}, "accepted": ["x"]}
    assert differences(old, {}) == differences({}, old) == []
    assert differences({"content": "a" * 32}, old) == []
    new = {"content": "c" * 32, "order": {"split": [1.0], "sequence": 9}}
    assert differences(old, new) == [
        f"the data: digest {'a' * 12} was recorded, now {'c' * 12}",
        "data.sequence: 8 was recorded, now 9",
    ]
    assert differences(old, {**new, "tokenizer": "d" * 32}, ["tokenizer"]) == [
        f"the tokenizer: digest {'b' * 12} was recorded, now {'d' * 12}"
    ]


def test_a_word_accepts_exactly_what_it_was_said_for() -> None:
    require_accepted([], None, "head", "advice", "--accept ")
    with pytest.raises(ConfigError) as refused:
        require_accepted(["one"], None, "head", "advice", "--accept ")
    word = acceptance_code(["one"])
    assert str(refused.value) == f"head:\n  - one\nadvice. If the difference is intended, add --accept {word}"
    require_accepted(["one"], word, "head", "advice", "--accept ")
    with pytest.raises(ConfigError):
        require_accepted(["one", "two"], word, "head", "advice", "--accept ")


def test_digests_stay_the_same_between_releases(tmp_path: Path) -> None:
    """They are recorded in job.yaml: another rule would refuse every run that was begun before."""
    (tmp_path / "a").write_bytes(b"1234")
    assert content_digest([tmp_path / "a"]) == "d58681837138a6500d9fde90f19074f3"
    assert tokenizer_digest(texts()) == "9e4a2f691ac2e2f037e4583d074b5e11"


def record(content: str, *phases: tuple[int, str]) -> dict[str, Any]:
    listed = [{"at": at, "content": one, "order": {"weights": [1]}} for at, one in phases]
    return {"content": content, "order": {"sequence": 8}, **({"phases": listed} if listed else {})}


def test_phases_are_compared_once_they_have_begun() -> None:
    recorded = record("a", (10, "b"), (20, "c"))
    assert differences(recorded, record("a"), consumed=10) == []
    assert differences(recorded, record("a", (10, "x")), consumed=10) == []
    assert differences(recorded, record("a", (10, "b"), (15, "x"), (20, "y")), consumed=15) == []
    assert differences(recorded, record("a", (10, "x"), (20, "c")), consumed=11) == [
        "data.phases, from sample 10 on: the data: digest b was recorded, now x"
    ]
    assert differences(recorded, record("a", (9, "b")), consumed=11) == [
        "data.phases, from sample 9 on: is new; the run has read 11 samples, and a new phase begins at 11 or later",
        "data.phases, from sample 10 on: was recorded, and is missing now; the run has read 11 samples",
    ]
    assert differences(record("a"), record("a", (10, "b")), consumed=10) == []
    assert len(differences(record("a"), record("a", (10, "b")), consumed=11)) == 1


def test_without_a_position_all_phases_are_compared() -> None:
    recorded = record("a", (10, "b"))
    assert differences(recorded, recorded) == []
    assert differences(recorded, record("a")) == ["data.phases, from sample 10 on: was recorded, and is missing now"]
    assert differences(record("a"), recorded) == ["data.phases, from sample 10 on: is new"]
    assert differences(recorded, record("a"), ["tokenizer"]) == []
    assert differences({}, recorded, consumed=100) == []  # of a run that recorded nothing
