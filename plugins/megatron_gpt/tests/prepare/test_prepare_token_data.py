"""``recipe inspect`` and ``recipe verify`` for token files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recipe_core.cli.main import main
from recipe_core.data.digest import verify_digest, with_digest
from recipe_core.errors import DataError
from recipe_megatron_gpt.data.corpus import train_tokenizer
from recipe_megatron_gpt.data.indexed import IndexedWriter
from recipe_megatron_gpt.data.inspect import TokenData
from recipe_megatron_gpt.data.sources import prefix_of

TEXTS = ["a text", "another text, somewhat longer than the one before it", "the end of all texts"] * 20


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared data set of 60 documents."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(TEXTS))
    train_tokenizer(TEXTS, 300).save("tokenizer.json")
    line = ["inputs=text.txt", "documents=blank_line", "tokenizer=tokenizer.json", "output=out", "engine=tokenizers"]
    assert main(["prepare", "gpt_indexed", *line]) == 0
    return Path("out")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The prefix of files without manifest and tokenizer: documents of 3, 1 and 4 tokens."""
    with IndexedWriter(tmp_path / "plain", "int32") as writer:
        for document in ([[5, 6], [7]], [[8]], [[1, 2, 3, 4]]):
            writer.add_document(document)
    return tmp_path / "plain"


def test_inspect_shows_what_there_is(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["inspect", "out"]) == 0
    text = capsys.readouterr().out
    tokens = np.fromfile(made / "tokens.bin", dtype=np.uint16).size
    for part in ("Megatron token files", "documents            60", f"tokens               {tokens}", "uint16, 0.0 MB"):
        assert part in text
    assert "made from            text.txt" in text
    assert "An example\n\na text\n<|endoftext|>another text" in text
    assert "█" * 40 in text


@pytest.mark.parametrize("name", ["plain", "plain.bin", "plain.idx", "."])
def test_any_of_their_names_does(plain: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plain.parent)
    assert TokenData().detect(Path(name))
    inspection = TokenData().inspect(Path(name), None)
    assert dict(inspection.facts) == {
        "documents": "3",
        "sequences": "4",
        "tokens": "8",
        "token type": "int32, 0.0 MB",
        "tokens per document": "1 to 4, median 3",
    }
    assert inspection.lengths == (("1", 1), ("2-3", 1), ("4-7", 1))
    assert inspection.example is None
    assert TokenData().verify(Path(name)) == []


def test_a_tokenizer_may_be_named(made: Path, plain: Path) -> None:
    example = TokenData().inspect(plain, made / "tokenizer.json").example
    assert example is not None
    assert len(example) == 8
    with pytest.raises(DataError, match=r"no\.json: not found"):
        TokenData().inspect(plain, Path("no.json"))


def test_a_folder_with_several_pairs(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in (".bin", ".idx"):
        plain.with_name(f"other{ending}").write_bytes(plain.with_suffix(ending).read_bytes())
    with pytest.raises(ValueError, match=r"holds 2 pairs of token files \(other, plain\); name them one by one"):
        prefix_of(plain.parent)
    inspection = TokenData().inspect(plain.parent, None)
    assert dict(inspection.facts) == {
        "pairs of files": "2",
        "documents": "6",
        "sequences": "8",
        "tokens": "16",
        "token type": "int32, 0.0 MB",
        "tokens per document": "1 to 4, median 3",
    }
    assert inspection.lengths == (("1", 2), ("2-3", 2), ("4-7", 2))
    assert main(["verify", str(plain.parent)]) == 0
    plain.with_name("third.idx").write_bytes(b"no index")
    edit(plain.with_name("other.bin"), 0, struct.pack("<i", -5))
    capsys.readouterr()
    assert main(["verify", str(plain.parent)]) == 1
    said = capsys.readouterr().out
    assert "other.bin: token 0 (in document 0) is -5" in said
    assert "third" in said


def test_nothing_that_anybody_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "holds no data set that an installed plugin knows (they know: " in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "no")]) == 2
    assert "there is no such file or folder, nor files that start with this name" in capsys.readouterr().err


def test_a_good_data_set_has_no_problem(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["verify", "out"]) == 0
    assert capsys.readouterr().out == "out: no problem found\n"


def test_verify_says_that_there_are_no_hashes(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a lost manifest, or files of other programs, `no problem found` alone would promise too much."""
    (made / "manifest.json").unlink()
    capsys.readouterr()
    assert main(["verify", "out"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("out: not checked: there is no manifest.json with hashes in out, so that a changed value ")


def edit(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def change_manifest(folder: Path) -> None:
    manifest = verify_digest((folder / "manifest.json").read_text())
    manifest["counts"]["documents"] = 61
    (folder / "manifest.json").write_text(json.dumps(with_digest(manifest)))


DAMAGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "an id beyond the vocabulary": (
        lambda out: edit(out / "tokens.bin", 2 * 9, struct.pack("<H", 60_000)),
        ["tokens.bin: does not hold the bytes", "tokens.bin: token 9 (in document 1) is 60000; expected below "],
    ),
    "another id": (
        lambda out: edit(out / "tokens.bin", 0, b"\1\0"), ["tokens.bin: does not hold the bytes that were written"],
    ),
    "one token too many": (
        lambda out: (out / "tokens.bin").write_bytes((out / "tokens.bin").read_bytes() + b"\1\0"),
        ["tokens, of which tokens.idx knows only", "tokens.bin: has "],
    ),
    "one token too few": (
        lambda out: (out / "tokens.bin").write_bytes((out / "tokens.bin").read_bytes()[:-2]),
        ["tokens.bin: cut off after "],
    ),
    "a damaged manifest": (lambda out: (out / "manifest.json").write_text("{"), ["manifest.json: is damaged"]),
    "a manifest of other files": (change_manifest, ["manifest.json: says 61 documents; there are 60"]),
    "a tokenizer that is gone": (lambda out: (out / "tokenizer.json").unlink(), ["tokenizer.json: is missing"]),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(made: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, messages = DAMAGES[damage]
    change(made)
    capsys.readouterr()
    assert main(["verify", "out"]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        assert message in line
    assert err == f"out: {len(lines)} problem{'s' if len(lines) > 1 else ''}\n"


def test_sequences_that_do_not_lie_one_behind_the_other(plain: Path) -> None:
    pointers = 34 + 4 * 4
    edit(plain.with_suffix(".idx"), pointers + 8, struct.pack("<q", 4))
    (problem,) = TokenData().verify(plain)
    assert "plain.idx: is damaged: sequence 1: expected to start at byte 8, got 4" in problem
