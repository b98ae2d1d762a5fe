"""The filters of a preparation: settings, options, counts and samples. No datatrove is needed."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_core import ConfigError, DataError
from recipe_core.data.filters import FilterChain, FilterCounts, FilteredInput, add_counts, merged_filters, require_kept
from recipe_core.data.filters.counts import EXCERPT, SAMPLES, filter_rows, sample_lines
from recipe_core.data.prepare import PreparedPart, PreparePart
from recipe_core.data.text import Counts, Record, find, pieces_of, records
from recipe_core.settings.fill import from_words

MODULE = """
def short(text, least=3):
    return len(text.split()) >= least, "too short"

def upper(text, *, letters: str = "", many: tuple = ()):
    for letter in letters:
        text = text.replace(letter, letter.upper())
    return text

def bare(text):
    return "bad" not in text

def empties(text):
    return ""

def wrong(text):
    return 1

def fails(text):
    raise RuntimeError("no such key")

class Format:
    def __init__(self, tail="."):
        self.tail = tail
    def format(self, text):
        return text + self.tail

class Neither:
    def run(self, data):
        yield from data

value = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_filters.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_filters", raising=False)
    monkeypatch.chdir(tmp_path)
    return "own_filters"


def chain_of(*filters: Any) -> FilterChain:
    return FilterChain.of(FilteredInput(("x",), filters=filters))


def applied(chain: FilterChain, *texts: str) -> tuple[list[str | None], list[dict[str, Any]]]:
    counts = chain.new_counts()
    places = [Record(text, "a.jsonl", 10 * n, n, document=("a.jsonl", n)) for n, text in enumerate(texts, 1)]
    return [chain.apply(place, place.text, counts) for place in places], [count.as_dict() for count in counts]


def test_filters_drop_and_change_in_order() -> None:
    chain = chain_of("own_filters:bare", {"own_filters:upper": {"letters": "ab"}}, {"own_filters:short": {"least": 2}})
    texts, (bare, upper, short) = applied(chain, "a b", "bad a", "x y", "a")
    assert texts == ["A B", None, "x y", None]
    assert bare == {
        "documents": 4, "changed": 0, "dropped": {"bare": 1},
        "samples": [{"file": "a.jsonl", "document": 2, "reason": "bare", "text": "bad a"}],
    }  # fmt: skip
    assert (upper["documents"], upper["changed"], upper["dropped"]) == (3, 2, {})
    assert short["samples"] == [{"file": "a.jsonl", "document": 4, "reason": "too short", "text": "A"}]


def test_a_class_with_format_and_a_chain_in_a_worker() -> None:
    chain = pickle.loads(pickle.dumps(chain_of({"own_filters:Format": {"tail": "!"}})))
    assert applied(chain, "a")[0] == ["a!"]
    assert not chain_of()
    assert applied(chain_of(), "a") == (["a"], [])


def test_a_text_that_a_filter_removes_is_dropped() -> None:
    texts, (counts,) = applied(chain_of("own_filters:empties"), "a")
    assert texts == [None]
    assert counts["dropped"] == {"nothing_left": 1}


def test_samples_are_the_first_and_short() -> None:
    _, (counts,) = applied(chain_of("own_filters:bare"), *(f"bad {n} " + "x" * 300 for n in range(9)))
    assert [sample["document"] for sample in counts["samples"]] == [*range(1, SAMPLES + 1)]
    assert {len(sample["text"]) for sample in counts["samples"]} == {EXCERPT}


@pytest.mark.parametrize(
    ("line", "filters"),
    [
        ("own_filters:bare,own_filters:short", ("own_filters:bare", "own_filters:short")),
        ("[own_filters:bare, {pii: {remove_ips: false}}]", ("own_filters:bare", {"pii": {"remove_ips": "false"}})),
        ("[{regex: {regex_exp: 'https?://x, y'}}]", ({"regex": {"regex_exp": "https?://x, y"}},)),
        ("", ()),
    ],
)
def test_the_setting_on_the_command_line(line: str, filters: tuple[Any, ...]) -> None:
    settings = from_words(FilteredInput, "data", ["inputs=x", f"filters={line}"])
    assert settings.filters == filters
    assert settings.numbers_documents == bool(filters)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (
            ("gopher",),
            "no filter is named 'gopher'; did you mean 'gopher_quality'? (there are: gopher_quality, gopher_r",
        ),
        (("minhash",), "minhash: duplicates are found among all documents, and a filter sees one at a time; remove"),
        (("sampler",), "it draws at random"),
        (("url",), "are read without the addresses of documents"),
        (({"a": {}, "b": {}},), "expected one name for each filter"),
        (('[{regex: {regex_exp: "\\d"}}]',), "cannot be read as YAML"),
    ],
)
def test_names_that_cannot_be_had(filters: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=r"^filters: ") as error:
        FilteredInput(("x",), filters=filters)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"own_filters:short": {"last": "3"}}, "no option is named 'last'; did you mean 'least'? (options: least=3)"),
        ({"own_filters:short": {"least": "x"}}, "least: expected a number, got 'x'"),
        ({"own_filters:upper": {"many": "3"}}, "many: expected a list, got '3'"),
        ("own_filters:nothing", "cannot be imported (AttributeError"),
        ("no_such:thing", "cannot be imported (ModuleNotFoundError"),
        ("own_filters:value", "is 3; expected a function of a text, or a class of filters"),
        ("own_filters:Neither", "Neither has neither the method filter"),
        ("builtins:iter", "builtins:iter cannot be used (ValueError: no signature found"),
    ],
)
def test_own_filters_that_cannot_be_used(step: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        chain_of(step)
    assert str(error.value).startswith("filters: ")
    assert expected in str(error.value)


def test_datatrove_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    absent = {"datatrove", "loguru"}
    for name in [name for name in sys.modules if name.partition(".")[0] in absent]:
        monkeypatch.delitem(sys.modules, name)
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("recipe_core.data.filters.build.find_spec", lambda n: None if n in absent else find(n))
    with pytest.raises(ConfigError, match=r"^filters: pii: needs the package datatrove: pip install 'recipe-core\[f"):
        chain_of("pii")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("wrong", "expected True, False, False with the reason, or a text, got 1"), ("fails", "no such key")],
)
def test_a_filter_that_fails_names_the_document(name: str, expected: str) -> None:
    with pytest.raises(DataError, match=rf"^a.jsonl:10: the filter own_filters:{name} failed .*{expected}"):
        applied(chain_of(f"own_filters:{name}"), "a")


def test_the_identity_follows_the_code(tmp_path: Path) -> None:
    from recipe_core.data.filters import chain

    before = chain_of("own_filters:bare").identity
    assert [*before] == ["filters[0] source"]
    (tmp_path / "own_filters.py").write_text(MODULE + "\n", encoding="utf-8")
    chain._built.cache_clear()
    assert chain_of("own_filters:bare").identity != before


def parts_of(folder: Path, chain: FilterChain, count: int) -> list[PreparedPart]:
    settings = FilteredInput((str(folder),), documents="blank_line", filters=("own_filters:bare",))
    sources, parts = find(settings), []
    for part in (PreparePart(number, count) for number in range(1, count + 1)):
        counts, filtered = Counts(), chain.new_counts()
        for record in records(settings, counts, pieces_of(settings, sources, part)):
            chain.apply(record, record.text, filtered)
        entries = chain.entries(add_counts([], filtered))
        manifest = {**entries, "documents_in_pieces": counts.documents_in_pieces}
        parts.append(PreparedPart(folder, part, json.loads(json.dumps(manifest))))
    return parts


@pytest.mark.parametrize("count", [2, 3, 7, 50])
def test_merged_counts_equal_those_of_one_process(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    texts = [f"{'bad' if n % 9 == 7 else 'good'} text {n}\n" * (1 + n % 4) for n in range(60)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n\n" for text in texts), encoding="utf-8")
    (folder / "b.txt").write_text("\n\n".join(texts[:20]), encoding="utf-8")
    (folder / "c.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts[5:25]), encoding="utf-8"
    )
    chain = chain_of("own_filters:bare")
    whole = merged_filters(parts_of(folder, chain, 1))
    assert [sample["document"] for sample in whole["filters"][0]["samples"]] == [8, 17, 26, 35, 44]
    assert whole["filters"][0]["dropped"] == {"bare": 10}
    assert merged_filters(parts_of(folder, chain, count)) == whole
    chain = chain_of("own_filters:short")  # of which nothing is dropped before the last file
    assert merged_filters(parts_of(folder, chain, count)) == merged_filters(parts_of(folder, chain, 1))


def test_filters_that_drop_all_are_refused() -> None:
    chain = chain_of({"own_filters:short": {"least": 2}}, "own_filters:bare")
    _, counts = applied(chain, "a", "b", "bad bad")
    expected = (
        r"x.txt: the filters dropped all 3 documents \(own_filters:short: 2 too short; own_filters:bare: 1 bare\)"
    )
    with pytest.raises(DataError, match=expected):
        require_kept(chain.entries(counts), ("x.txt",))
    require_kept(chain.entries(applied(chain, "a", "b c")[1]), ("x.txt",))
    require_kept(chain.entries([]), ("x.txt",))  # an empty part
    require_kept({}, ("x.txt",))


def test_rows_and_samples_for_people() -> None:
    manifest = {"filters": [{"filter": "pii", "by": {}, **FilterCounts(3000, 1200).as_dict()}]}
    assert filter_rows(manifest) == [("pii", "dropped 0 of 3,000, changed 1,200")]
    counts = FilterCounts(9, 0, {"b": 1, "a": 1, "c": 2})
    counts.samples = [{"file": "x.txt", "document": 1234, "reason": "b", "text": "One\n two"}]
    manifest = {"filters": [{"filter": "mine:f", "by": {}, **counts.as_dict()}]}
    assert filter_rows(manifest) == [("mine:f", "dropped 4 of 9 (2 c, 1 a, 1 b)")]
    assert sample_lines(manifest) == ["mine:f: b: x.txt, document 1,234: One two"]
    assert filter_rows({}) == sample_lines({}) == []
