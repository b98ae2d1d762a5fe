"""Sentence splitting: constructed cases, properties, and real text."""

# ruff: noqa: RUF001 - quotes and stops that look alike are part of what is tested

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.data.text import sentences
from recipe_core.testing.bounds import allowed

pytest.importorskip("regex", reason="needs the packages of recipe-core[text]")
DATA = Path(os.environ["RECIPE_DATA"])
SAMPLE = DATA / "wiki-sample.jsonl.gz"

# One string per case; the bars are where it should be split.
CASES = {
    "plain": "One sentence. | Another one! | A third? | Yes.",
    "titles": "Dr. Smith met Mr. and Mrs. Jones at St. Paul's. | Lt. Col. Lee and Prof. Li came.",
    "initials": "J. R. R. Tolkien and C.S. Lewis wrote. | George W. Bush read. | It was Plan B. | He left.",
    "countries": "He lived in the U.S. | The U.S. Army was in the U.K. then. | In the U.S.S.R. | It was cold.",
    "companies": "Apple Inc. | It makes phones. | Foo Ltd. Products sell. | The Bar Corp. | This one.",
    "decimals": "It cost 3.14 dollars. | Version 2.0. | About .5 percent.",
    "numbers after abbreviations": "See Fig. 3, no. 5, vol. IV. | He said no. | Then p. 5. | In Sept. | The end.",
    "years": "It ended in 1999. | The war began in 1914. | Next.",
    "lists": "1. Introduction to it. | 2. Methods are hard. | B. Others.",
    "numbers of sections": "2.3. Results are here. | More.",
    "times": "At 5 p.m. on Monday. | At 6 p.m. | He left at 7 a.m. | The end.",
    "latin": "Some, e.g. Macs, i.e. The ones, cf. Smith et al. (2005). | As in Smith et al. | The rest etc. | In fact.",
    "quotes": 'He said "Go away." | Then he left. | “Quoted.” | ‘Again?’ | "Why?" she asked. | (It was late.) | Good.',
    "German and French quotes": "Er sagte „Nein.“ | Dann ging er. | »Ja.« | « Oui. » | Puis il partit.",
    "ellipses": "Wait... | No… | Yes ... but no. | Maybe... not. | Any . . . of these.",
    "several stops": "Really?! | What?? | No!!! | Yes.",
    "notes": "It ended.[12] | Next one.[a][3] | The end.",
    "small letters go on": "Yahoo! is here. | What? no. | The web. site is e-mail.",
    "web addresses": "Visit www.example.com. | Then a.b.c is fine.",
    "law": "In Brown v. Board of Education. | Roe v. Wade.",
    "ordinals of kings": "Louis XIV. | The king died. | Henry V. | He won.",
    "no space, no end": "It ended.Next is glued. | Fine.",
    "Chinese and Japanese": "这是一句话。|你好！|真的吗？|これは文です。|「そうですか？」|はい｡|おわり",
    "Hindi": "यह एक वाक्य है। | यह दूसरा है॥ | अंत",
    "Arabic and Urdu": "هل هذا سؤال؟ | نعم. | یہ جملہ ہے۔ | ختم",
    "Russian": "Москва. | А. С. Пушкин жил там. | Он писал. | Élan vital. | Über alles.",
    "Ethiopic and Armenian": "ሰላም ነው። | ደህና። | Բարեւ։ | Ձեզ։",
    "line ends": "Heading\n|Line without stop\n\n|Third. | Fourth.\r\n|Fifth",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cases(case: str) -> None:
    text = case.replace(" | ", " ").replace("|", "")
    assert sentences(text) == [part.strip() for part in case.split("|")]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u3000\n"])
def test_nothing(text: str) -> None:
    assert sentences(text) == []


@pytest.mark.parametrize("text", ["end. ", "e.g. ", "a. ", "no. ", ".", ". .", "Mr.\tX", "Mr.  X", "p. ", "1.\u00a0X"])
def test_ends_of_lines(text: str) -> None:
    assert sentences(text) == [text.strip()]


@given(st.text(alphabet="aAzZ.!?…。\"'”)(] \t\n019éДМU", max_size=80))
@settings(max_examples=300, deadline=None)
def test_nothing_is_lost_or_added(text: str) -> None:
    found = sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() and "\n" not in sentence for sentence in found)


@pytest.mark.parametrize("piece", ["mr.\t", "a. ", ". ", "x" * 50, "!" * 10, "。", '."', "( ", "[1]"])
def test_long_lines_take_no_hours(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
    assert time.process_time() - began < allowed(5)


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the real data is not there ($RECIPE_DATA)")
def test_real_text() -> None:
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    found = [sentence for text in texts for sentence in sentences(text)]
    assert "".join("".join(found).split()) == "".join("".join(texts).split())
    assert 90_000 < len(found) < 100_000
    lengths = sorted(map(len, found))
    assert 90 < lengths[len(lengths) // 2] < 140  # characters of the median sentence
    torn = [s for s in found if s.endswith((" Dr.", " Mr.", " e.g.", " J.", " St.", " vs.")) and len(s) > 40]
    assert len(torn) < 10
