"""The 111 articles of two excerpts of a real dump: what is left of the markup, and what is lost of the text.

The patterns and sentences come from reading articles of every kind line by line, next to their wikitext: a biography
with tables, cities and countries with infoboxes and coordinates, lists, chemistry, mathematics, disambiguations.
"""

# ruff: noqa: RUF001 - dashes and signs that look alike are part of what is tested

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from recipe_core.data.text import Record, TextInput, clean, records, wikitext
from recipe_core.data.text.wikitext import tidy

mwparserfromhell = pytest.importorskip("mwparserfromhell", reason="needs the packages of recipe-core[text]")
DATA = Path(os.environ["RECIPE_DATA"])
DUMPS = sorted(DATA.glob("*.bz2")) if DATA.is_dir() else []
pytestmark = pytest.mark.skipif(not DUMPS, reason=f"the real data is not in {DATA} ($RECIPE_DATA)")

LEFT = {
    "braces, brackets, quotes, magic words": r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|''|__[A-Z]{3,}__|==|^[*#:;=|!]|\]\(http",
    "tags": r"(?i)<!--|-->|</?(?:ref|br|div|span|su[bp]|small|nowiki|math|gallery|table|t[rdh]|li|[uo]l|i|b|center)\b",
    "entities": r"&(?:[A-Za-z]{2,8}|#\d+|#x[0-9A-Fa-f]+);",
    "attributes": r"\b(?:style|class|v?align|(?:col|row)span|bgcolor|border|cellpadding|scope|group)\s*=\s*[\"'\d]",
    "namespaces": r"\b(?:File|Image|Category|Media|Template|Wikipedia|Portal|Help|User|Special):\w",
    "pictures": r"\b\d+x?\d*px\b|\bupright\s*=|\|\s*(?:left|right|center|frame|thumb)\b",
    "links to other languages": r"^(?:de|fr|es|it|nl|pl|pt|ru|ja|zh|sv|simple):\S",
    "citations": r"\[https?:|\bcite (?:web|book|journal|news)\b|\b(?:accessdate|archiveurl|last1|authorlink)\s*=",
    "empty parentheses": r"\([\s,;:–-]+\)|(?<=\s)\(\)|\(\s*[,;:]\s|(?<=\s)\[\s*\]",
    "units as {{convert}} names them": r"\b(?:[kMGT]?oilbbl|[MT](?:USgal|cuft)|e[369]\w+|sqmi|sqkm|km2|PD/|C-change)\b",
    "formulas in LaTeX": r"\\(?:frac|sum|bar|alpha|beta|omega|begin|left|text|mathrm|cdot|ldots|sqrt|int)\b",
    "white space": r"  |\t|\u00a0| $|\n{3,}",
    "punctuation": r",,|;;|;\s+\.",
    "marks of our own": rf"[{tidy.HOLE}{tidy.ITEM}{tidy.HEADING}{tidy.BREAK}]",
}
"""Traces of markup that must not be found; the text has been looked through for words that these would take for it."""

WHOLE = {
    "A": "such as /a/, /ä/, or /ɑ/. An exception is Saanich",
    "Alaska": "Bureau of Land Management manages 87 million acres, or 23.8% of the state",
    "Analysis of variance": "The definitional equation of sample variance is s²=1/(n-1) ∑(y_i-ȳ)², where the divisor",
    "Arithmetic mean": "the arithmetic mean of 3 and 5 is (3+5)/2 = 4, or equivalently (1/2 · 3) + (1/2 · 5) = 4.",
    "Aruba": "Alto Vista Chapel\nAntilla Shipwreck\nArikok National Park",
    "List of anthropologists": "B\n\nFlorence Babb\nNigel Barley",
}
"""Sentences that must come out whole, by the title of their article."""


@pytest.fixture(scope="module")
def articles() -> list[tuple[Record, str]]:
    found = records(TextInput(tuple(map(str, DUMPS))))
    return [(record, clean(record) or "") for record in found]


@pytest.mark.parametrize("pattern", LEFT.values(), ids=LEFT)
def test_no_markup_is_left(articles: list[tuple[Record, str]], pattern: str) -> None:
    assert len(articles) == 111
    left = [
        f"{record}: {match[0]!r} in {text[max(match.start() - 40, 0) : match.end() + 40]!r}"
        for record, text in articles
        for match in re.finditer(pattern, text, re.MULTILINE)
    ]
    assert left == []


@pytest.mark.parametrize("title", WHOLE)
def test_sentences_with_templates_and_formulas_come_out_whole(articles: list[tuple[Record, str]], title: str) -> None:
    assert any(WHOLE[title] in text for record, text in articles if record.title == title)


def test_no_words_are_lost(articles: list[tuple[Record, str]]) -> None:
    """Against mwparserfromhell's own tree: the words outside of all markup, as often as they stand there."""
    total = 0
    lost: Counter[str] = Counter()
    for record, text in articles[::10]:
        code = mwparserfromhell.parse(wikitext._without_opaque(record.text), skip_style_tags=True)
        outside = re.findall(r"[A-Za-z]{6,}", " ".join(str(node) for node in code.filter_text(recursive=False)))
        total += len(outside)
        lost += Counter(outside) - Counter(re.findall(r"[A-Za-z]{6,}", text))
    assert total > 10_000
    assert sum(lost.values()) < 0.001 * total, lost.most_common(20)
