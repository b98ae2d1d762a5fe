"""Facts kept about a tokenizer are those that reading it again would give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from recipe_core.errors import ConfigError, DataError
from recipe_megatron_gpt.data.corpus import END, train_tokenizer
from recipe_megatron_gpt.tokenizer import known
from recipe_megatron_gpt.tokenizer.known import KnownTokenizer, read_known_tokenizer


@pytest.fixture
def path(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer.json, and a cache in which nothing is known."""
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    train_tokenizer(texts, 400).save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def expected(path: Path, eod: str | None) -> KnownTokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    end = None if eod is None else tokenizer.token_to_id(eod)
    size = tokenizer.get_vocab_size()
    return KnownTokenizer(tokenizer.to_str(), size, size, end)


@pytest.mark.parametrize("eod", [END, None])
def test_the_second_time_it_is_not_read(path: Path, eod: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_known_tokenizer(path, eod) == expected(path, eod)
    monkeypatch.setattr(known, "read_vocabulary", lambda _: pytest.fail("read again"))
    assert read_known_tokenizer(path, eod) == read_known_tokenizer(path.parent, eod) == expected(path, eod)


def test_other_content_or_another_end_is_another_tokenizer(path: Path, texts: list[str]) -> None:
    read_known_tokenizer(path, END)
    train_tokenizer(texts, 300).save(str(path))
    assert read_known_tokenizer(path, END) == expected(path, END)
    assert read_known_tokenizer(path, "e") == expected(path, "e")
    for _ in range(2):  # what failed is not kept
        with pytest.raises(ConfigError, match=r"tokenizer\.json has no token '<none>'"):
            read_known_tokenizer(path, "<none>")


@pytest.mark.parametrize("content", ["", '{"size": ', "[]", "{}", "\xff"])
def test_a_damaged_entry_is_made_again(path: Path, content: str) -> None:
    read_known_tokenizer(path, END)
    (entry,) = (path.parent / "cache" / "tokenizers").glob("*.json")
    good = entry.read_bytes()
    entry.write_text(content, encoding="latin-1")
    assert read_known_tokenizer(path, END) == expected(path, END)
    assert entry.read_bytes() == good


def test_a_fact_that_was_changed_is_found_out_again(path: Path) -> None:
    read_known_tokenizer(path, END)
    (entry,) = (path.parent / "cache" / "tokenizers").glob("*.json")
    good = json.loads(entry.read_text())
    entry.write_text(json.dumps({**good, "size": good["size"] + 1}))
    assert read_known_tokenizer(path, END) == expected(path, END)
    assert json.loads(entry.read_text()) == good


def test_a_cache_that_cannot_be_written_is_no_obstacle(path: Path) -> None:
    (path.parent / "cache").write_text("a file, no folder")
    assert read_known_tokenizer(path, END) == read_known_tokenizer(path, END) == expected(path, END)


def test_a_file_that_cannot_be_read_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=f"^{path}: cannot be read \\(Permission denied\\)$"):
        read_known_tokenizer(path, END)
