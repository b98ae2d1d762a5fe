"""The named filters against datatrove's own executor: the same documents kept, the same texts, the same reasons."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.data.filters.build import Step, build
from recipe_core.data.filters.named import NAMED
from recipe_core.data.text import TextInput, records
from recipe_core.data.text.library import documents

pytest.importorskip("datatrove", reason="needs the packages of recipe-core[filters]")
pytest.importorskip("spacy", reason="needs the packages of recipe-core[filters]")
pytestmark = pytest.mark.peer

LINES = "The house is old, and it was built by the sea. A man lives there with his dog.\n"
HARD = [
    "short",
    LINES * 40,
    "- a\n- b\n" * 60,
    f"{LINES}Write to ann@mail.com or to bob@mail.org at 8.8.4.4 or 10.0.0.1.\n",
    "".join(f"The {n}th line has a word that is its own, {n * n}, and it ends here.\n" for n in range(60)),
    "javascript must be on.\n" + LINES * 6,
    "function() { return }\n" + LINES,
    "schÃ¶n &amp; gut\n*** ***\n---\n" + LINES,
    "das haus ist alt und der hund ist da " * 20,
    "A question of the exam: which river is the longest of all rivers here?",
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [*HARD, *documents(Path(os.__file__).parent)[:120]]


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, lists and an index, under the names by which datatrove caches them."""
    folder = tmp_path_factory.mktemp("assets")
    (folder / "unigram_freq.csv").write_text("word,count\nthe,900\nis,300\nand,300\nof,200\na,100\n", encoding="utf-8")
    (folder / "words.txt").write_text("dog\nreturns true\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(assets: Path) -> Path:
    """A fastText classifier of English and German by a few words; training one is not deterministic."""
    pytest.importorskip("fasttext", reason="fastText has no release for this Python")
    english, german = ["the", "is", "and", "of", "a", "to"], ["das", "ist", "und", "haus", "alt", "da"]
    entries = [*((word, 0) for word in ("</s>", *english, *german)), ("__label__en", 1), ("__label__de", 1)]
    dimensions, supervised, softmax = 2, 3, 3
    data = struct.pack("<2i", 793712314, 12)
    data += struct.pack("<12id", dimensions, 5, 1, 1, 5, 1, softmax, supervised, 0, 0, 0, 100, 1e-4)
    data += struct.pack("<3i2q", len(entries), len(entries) - 2, 2, 100, -1)
    data += b"".join(word.encode() + struct.pack("<bqb", 0, 1, kind) for word, kind in entries)
    vectors = [(0.0, 0.0), *[(1.0, 0.0)] * 6, *[(0.0, 1.0)] * 6]
    for rows in (vectors, [(2.0, 0.0), (0.0, 2.0)]):
        data += struct.pack("<?2q", False, len(rows), dimensions) + b"".join(struct.pack("<2f", *row) for row in rows)
    (assets / "lid.bin").write_bytes(data)
    return assets / "lid.bin"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of datatrove's downloads."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "datatrove" / "filters"
    folder.mkdir(parents=True)
    return folder


def theirs(tmp_path: Path, texts: list[str], step: Any) -> dict[int, tuple[str | None, str | None]]:
    """Texts and reasons by datatrove's executor, one document after the other."""
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.writers import JsonlWriter

    dropped = JsonlWriter(str(tmp_path / "dropped"), output_filename="${rank}.jsonl", compression=None)
    if hasattr(step, "exclusion_writer"):
        step.exclusion_writer = dropped

    def read(data: Any, rank: int, world_size: int) -> Any:
        yield from (Document(text=text, id=str(number)) for number, text in enumerate(texts))

    kept = JsonlWriter(str(tmp_path / "kept"), output_filename="${rank}.jsonl", compression=None)
    LocalPipelineExecutor(pipeline=[read, step, kept], tasks=1, logging_dir=str(tmp_path / "logs")).run()
    found: dict[int, tuple[str | None, str | None]] = {}
    for row in rows(tmp_path / "kept"):
        found[int(row["id"])] = row["text"], None
    for row in rows(tmp_path / "dropped"):
        found[int(row["id"])] = None, row.get("metadata", {}).get("filter_reason")
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text("utf-8").splitlines()]


def equal(step: Step, texts: list[str], expected: dict[int, tuple[str | None, str | None]]) -> None:
    assert len(expected) == len(texts)
    ours = [step.apply(text) for text in texts]
    for number, (kept, reason) in enumerate(ours):
        their_text, their_reason = expected[number]
        assert kept == their_text
        assert reason == ("" if kept is not None else their_reason or step.name)
    assert any(text is None for text, _ in ours) or any(text != own for (text, _), own in zip(ours, texts, strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gopher_quality", {"min_doc_words": 40}),
        ("gopher_quality", {"language": "deu", "min_doc_words": 10, "stop_words": ["der", "die", "das", "und"]}),
        ("gopher_repetition", {}),
        ("gopher_repetition", {"top_n_grams": [[2, 0.1]], "dup_n_grams": []}),
        ("fineweb_quality", {"short_line_thr": 0.5}),
        ("c4_quality", {"min_num_sentences": 3}),
        ("c4_paragraphs", {}),
        ("regex", {"regex_exp": r"re\w+s\b"}),
        ("pii", {"email_replacement": "a@b.c", "ip_replacement": "1.1.1.1"}),
        ("ftfy", {}),
        ("symbol_lines", {"replace_char": "#"}),
    ],
)
def test_a_filter_equals_datatroves(name: str, options: dict[str, Any], texts: list[str], tmp_path: Path) -> None:
    import pkgutil

    kind: Callable[..., Any] = pkgutil.resolve_name(NAMED[name].target)
    equal(build(name, options), texts, theirs(tmp_path, texts, kind(**options)))


def test_filters_that_read_a_list_equal_datatroves(
    texts: list[str], assets: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datatrove.pipeline.filters import C4BadWordsFilter, UnigramLogProbFilter

    (cache / "unigram_logprob_filter").mkdir()
    (cache / "unigram_logprob_filter" / "unigram_freq.csv").write_bytes((assets / "unigram_freq.csv").read_bytes())
    step = build("unigram", {"frequencies": str(assets / "unigram_freq.csv"), "logprobs_threshold": "-14"})
    equal(step, texts, theirs(tmp_path / "1", texts, UnigramLogProbFilter(logprobs_threshold=-14)))
    monkeypatch.setattr("datatrove.pipeline.filters.c4_filters._EN_BADWORDS_URL", str(assets / "words.txt"))
    step = build("c4_bad_words", {"words": str(assets / "words.txt")})
    equal(step, texts, theirs(tmp_path / "2", texts, C4BadWordsFilter()))


def test_filters_by_a_model_equal_datatroves(
    texts: list[str], model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datatrove.pipeline.filters import FastTextClassifierFilter, LanguageFilter
    from datatrove.utils.lid import FT176LID

    monkeypatch.setattr(FT176LID, "MODEL_URL", str(model))
    step = build("language", {"model": str(model), "languages": "en", "language_threshold": "0.75"})
    equal(step, texts, theirs(tmp_path / "1", texts, LanguageFilter("en", 0.75)))
    options = {"keep_labels": [["de", 0.5]], "filter_mode": "SENTENCE"}
    step = build("fasttext", {"model": str(model), **options})
    equal(step, texts, theirs(tmp_path / "2", texts, FastTextClassifierFilter(str(model), **options)))


def test_decontamination_equals_datatroves(texts: list[str], tmp_path: Path) -> None:
    import numpy as np
    from datatrove.pipeline.decont import NGramsDecontConfig, NGramsDecontFilter
    from datatrove.utils.text import ngrams, simplify_text

    config, folder = NGramsDecontConfig(n_grams=7), tmp_path / "index"
    folder.mkdir()
    peer = NGramsDecontFilter(str(folder), config)
    hashes = []
    for text in (texts[9], texts[40]):
        words = peer.tokenizer.word_tokenize(simplify_text(text, config.norm_config))
        hashes += [peer.hash_func(" ".join(gram)) for gram in ngrams(words, 7)]
    np.array(hashes, dtype=config.hash_config.np_descr).tofile(folder / "exam.index.hashes")
    step = build("decontamination", {"index": str(folder), "n_grams": "7"})
    equal(step, texts, theirs(tmp_path, texts, peer))
    assert [number for number in (9, 10, 40) if step.apply(texts[number])[0] is None] == [9, 40]


def test_replacements_of_a_document_do_not_depend_on_others(texts: list[str]) -> None:
    from datatrove.pipeline.formatters import PIIFormatter

    step = build("pii", {})
    for _ in range(3):
        for text in texts[:8]:
            assert step.apply(text) == (PIIFormatter().format(text), "")


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "gopher_quality",
            {"min_words": "3"},
            "no option is named 'min_words'; did you mean 'min_doc_words'? (options: m",
        ),
        ("gopher_quality", {"min_doc_words": "few"}, "min_doc_words: expected a number, got 'few'"),
        ("c4_quality", {"filter_policy": "3"}, "filter_policy: expected true or false, got '3'"),
        ("gopher_quality", {"language": "zz"}, "has no rules for the words of 'zz'; expected a code such as eng"),
        ("gopher_quality", {"language": "bo"}, "datatrove downloads data to split the words of language=bo"),
        ("gopher_quality", {"exclusion_writer": "x"}, "no option is named 'exclusion_writer'"),
        ("c4_bad_words", {"words": "w", "keep_fraction": "0.5"}, "no option is named 'keep_fraction'"),
        ("regex", {}, "the option regex_exp is missing (options: regex_exp)"),
        ("regex", {"regex_exp": "("}, "cannot be used (error: missing ), unterminated subpattern at position 0"),
        ("c4_bad_words", {}, "set words to the path of a text file with a word or phrase in each line; nothing is dow"),
        (
            "language",
            {"model": "none.bin"},
            "model: none.bin: cannot be read (No such file or directory); expected a f",
        ),
        ("unigram", {"frequencies": __file__}, "expected a file named unigram_freq.csv"),
        ("decontamination", {"index": "."}, "there is no file *.index.hashes; expected a folder"),
    ],
)
def test_wrong_options_are_refused_before_the_work(
    name: str, options: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipe_core import ConfigError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        build(name, options)
    assert str(error.value).startswith(f"filters: {name}")
    assert expected in str(error.value)


def test_a_list_with_an_empty_line_is_refused(tmp_path: Path) -> None:
    from recipe_core import ConfigError

    (tmp_path / "words.txt").write_text("dog\n\ncat\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2 is empty, and would match any document"):
        build("c4_bad_words", {"words": str(tmp_path / "words.txt")})


def test_labels_that_the_model_lacks_are_refused(model: Path) -> None:
    from recipe_core import ConfigError

    with pytest.raises(ConfigError, match=r"has no label 'fr' \(labels: (en, de|de, en)\)"):
        build("fasttext", {"model": str(model), "keep_labels": [["fr", 0.5]]})
    with pytest.raises(ConfigError, match="set keep_labels or remove_labels"):
        build("fasttext", {"model": str(model)})


def test_missing_packages_end_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from recipe_core import ConfigError

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "ftfy" else find(name, *a))
    from datatrove.utils._import_utils import _is_package_available

    getattr(_is_package_available, "cache_clear", lambda: None)()
    with pytest.raises(ConfigError, match=r"Please install `ftfy` .* pip install 'recipe-core\[filters\]'"):
        build("ftfy", {})
    monkeypatch.undo()
    getattr(_is_package_available, "cache_clear", lambda: None)()


def test_the_example_of_the_documentation_removes_duplicates(texts: list[str], tmp_path: Path) -> None:
    example = next(parent for parent in Path(__file__).parents if (parent / "docs").is_dir()) / "docs" / "examples"
    (tmp_path / "raw").mkdir()
    kept = texts[len(HARD) : len(HARD) + 12]
    lines = [json.dumps({"text": text}) for text in [*kept, kept[3], kept[7] + " And more."]]
    (tmp_path / "raw" / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    script = example / "remove_duplicates.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unique = [record.text for record in records(TextInput((str(tmp_path / "unique"),)))]
    assert unique == kept
