"""The corpus that needs no files."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.data.text import library
from recipe_core.errors import DataError
from recipe_core.layouts.parallel import Run
from recipe_core.testing import at_once
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.settings import GptIndexed
from recipe_megatron_gpt.tokenizer import text

CONFIG = GptIndexed(vocabulary=1000)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the corpus in it, made by two processes that ask at once."""
    folder = tmp_path_factory.mktemp("cache")
    code = (
        "import sys, pathlib; from recipe_megatron_gpt.data import corpus; "
        "corpus.prepare(pathlib.Path(sys.argv[1]), 1000)"
    )
    at_once(code, str(folder))
    return folder


def test_it_is_english_and_large_enough_to_learn_from(cache: Path) -> None:
    prefix = corpus.prepare(cache, 1000)
    file = IndexedFile.open(prefix)
    assert file.tokens.dtype == "uint16"
    assert file.tokens.size > 300_000
    names = [path.name for path in prefix.parent.iterdir()]
    assert sorted(names) == ["manifest.json", "text.bin", "text.idx", "tokenizer.json"]
    whole = text.decode(CONFIG, file.tokens.tolist(), cache)
    assert whole is not None
    assert whole.count("<|endoftext|>") == len(file.sizes) > 1000
    words = whole.lower().split()
    assert all(words.count(word) > len(words) / 200 for word in ("the", "a", "of", "to", "is"))


def test_no_document_repeats_another(cache: Path) -> None:
    file = IndexedFile.open(corpus.prepare(cache, 1000))
    documents = [str(text.decode(CONFIG, file.sequence(n).tolist(), cache)) for n in range(len(file.sizes))]
    train, valid = documents[: len(documents) * 97 // 100], documents[len(documents) * 97 // 100 :]

    def runs(document: str) -> set[tuple[str, ...]]:
        words = document.removesuffix("<|endoftext|>").lower().split()
        return {tuple(words[at : at + 8]) for at in range(len(words) - 7)}

    known = set().union(*map(runs, train))
    repeated = [len(runs(document) & known) / max(1, len(runs(document))) for document in valid]
    assert max(repeated) < 0.6
    assert sum(repeated) / len(repeated) < 0.05
    assert len(set(documents)) == len(documents)


def test_the_same_documents_and_tokenizer_in_every_process(cache: Path) -> None:
    prefix = corpus.prepare(cache, 1000)
    texts = library.documents(Path(sysconfig.get_paths()["stdlib"]))
    tokenizer = corpus.train_tokenizer(texts, 1000)
    assert tokenizer.to_str(pretty=True) == prefix.with_name("tokenizer.json").read_text()
    assert tokenizer.get_vocab_size() == 1000
    file = IndexedFile.open(prefix)
    for number in (0, 7, len(texts) - 1):
        assert [*tokenizer.encode(texts[number]).ids, 0] == file.sequence(number).tolist()


def test_text_comes_back_from_its_ids(cache: Path) -> None:
    words = "Return the list of files.\n\nÆther costs 5 €\t<|endoftext|>"
    ids = text.encode(CONFIG, words, cache)
    assert ids is not None
    assert ids[-1] == 0
    assert text.decode(CONFIG, ids, cache) == words


def test_it_trains_without_any_file(cache: Path, run_of: Callable[..., Run]) -> None:
    samples = build(CONFIG, run_of(cache=cache, vocabulary=1000, eval_every=1))
    for split in ("train", "valid"):
        assert samples.read(split, 0, 3)["labels"].shape == (3, CONFIG.sequence)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("name", ["manifest.json", "text.bin", "text.idx", "tokenizer.json"])
def test_a_corpus_with_a_file_missing_or_damaged_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, flipped: bool
) -> None:
    """A flipped bit gave other losses, and no word."""
    monkeypatch.setattr(library, "documents", lambda library: ["one text", "another text"] * 20)
    prefix = corpus.prepare(tmp_path, 300)
    before = prefix.with_name(name).read_bytes()
    if flipped:
        prefix.with_name(name).write_bytes(bytes((before[0], before[1] ^ 1)) + before[2:])
    else:
        prefix.with_name(name).unlink()
    assert corpus.prepare(tmp_path, 300) == prefix
    assert prefix.with_name(name).read_bytes() == before
    assert corpus.prepare(tmp_path, 301) != prefix


def test_files_without_a_tokenizer_have_no_text(write_tokens: Callable[..., str], tmp_path: Path) -> None:
    config = GptIndexed(files=(write_tokens([10]),))
    assert text.decode(config, [1, 2]) is None
    assert text.encode(config, "words") is None
    corpus.train_tokenizer(["words"], 300).save(str(tmp_path / "mine.json"))
    named = GptIndexed(files=config.files, tokenizer=str(tmp_path / "mine.json"))
    assert text.decode(named, text.encode(named, "words") or []) == "words"
    with pytest.raises(DataError, match=r"none\.json: not found; expected the path of a tokenizer"):
        text.decode(GptIndexed(files=config.files, tokenizer=str(tmp_path / "none.json")), [1])
