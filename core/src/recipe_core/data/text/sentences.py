# ruff: noqa: RUF001, RUF002 - quotes, dashes and stops that look alike are what this file tells apart
"""Rule-based sentence splitting: fast, reproducible, without a model.

The rules cover the sentence stops of Unicode and English abbreviations. In doubt they do not split: a sentence that is
too long harms training less than half a sentence.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from recipe_core.errors import DataError

_TITLES = """
    adm amb approx atty bros brig capt cdr cf col comdr comm cpl det dr drs e.g eg ens gen gov hon i.e ie insp lieut lt
    maj messrs mlle mme mr mrs ms msgr mt mts pfc pres prof pvt rep reps rev revd rt sen sens sgt sir ste supt viz vs
"""
"""Abbreviations before a name or in the middle of a sentence, never at its end."""
_NUMBERED = """
    abt app appx art arts bk c ca ch chap chaps circa cl d b eq eqs fig figs fl fol lib n no nos nr op p para pars pg pl
    pp pt r ref refs reg s sec sect ser tab vol vols jan feb mar apr jun jul aug sep sept oct nov dec
"""
"""Abbreviations before a number. Without a number they are ordinary words: "He said no. Then"."""
_EITHER = """
    a.d a.k.a a.m al b.a b.c b.c.e b.s c.e co corp d.c dept ed eds esp est etc excl ft inc incl intl jr ltd m.a m.d m.s
    natl p.m ph.d plc pty sr st u.k u.n u.s u.s.a u.s.s.r univ v
"""
"""Abbreviations in the middle of a sentence or at its end."""
_KINDS = {
    **dict.fromkeys(_TITLES.split(), "title"),
    **dict.fromkeys(_NUMBERED.split(), "numbered"),
    **dict.fromkeys(_EITHER.split(), "either"),
}
_LONGEST = max(map(len, _KINDS))
_FIRST_WORDS = """
    a after all although an and another as at because before both but by despite during each for from furthermore he
    her here his how however if in instead it its later many meanwhile moreover most no not of on once one other our
    several she since so some such that the their then there therefore these they this those though through thus to
    today under until unlike we what when where whether which while who why with yet you your
"""
_STARTERS = frozenset(_FIRST_WORDS.split())
"""Words that usually begin a sentence if capitalised: they decide after initials and abbreviations."""
_OPENING = "\"'“‘«([{"


def sentences(text: str) -> list[str]:
    """Split ``text`` into sentences, without surrounding white space.

    A sentence ends at a line end; after ``。``, ``！`` and the like; and after ``.``, ``!``, ``?``, ``…`` and the stops
    of other scripts, including closing quotes and brackets, if white space and no lower-case letter follows. A full
    stop after an abbreviation, an initial, or the number of a list item does not end a sentence. White space inside a
    sentence is unchanged.

    Raises:
        DataError: the package regex is missing.
    """
    parts: list[str] = []
    ends = _pattern().finditer
    for line in text.splitlines():
        start = 0
        for end in ends(line):
            at, after = end.span()
            if line[at] == "." and not _ends(line, start, at, after):
                continue
            if sentence := line[start:after].strip():
                parts.append(sentence)
            start = after
        if rest := line[start:].strip():
            parts.append(rest)
    return parts


@lru_cache(maxsize=1)
def _pattern() -> Any:
    try:
        import regex
    except ImportError as error:
        raise DataError("sentences need the package regex: pip install 'recipe-core[text]'") from error
    # German closes with “ and «, French puts a space before ».
    closing = r"""(?:["'”’»›“‘«\p{Pe}]|[ \u00a0\u202f]»(?!\S))*+"""
    note = r"(?:\[\w{1,4}\])*+"  # the number of a footnote, which follows the stop
    continued = r"(?![\"'“‘«(\[]*+\p{Ll}|[,;:.…)\]%])"
    return regex.compile(
        rf"[.!?…‼⁇⁈⁉؟۔।॥։።]{{1,16}}+{closing}{note}\s++{continued}"
        rf"|[。！？｡]++{closing}\s*+"
    )  # fmt: skip


def _ends(line: str, start: int, at: int, after: int) -> bool:
    """True if the full stop at ``at`` ends the sentence from ``start``; the next one would begin at ``after``."""
    if line[at + 1] in ".!?…":
        return True
    low = max(start, at - _LONGEST - 2)
    first = max(line.rfind(" ", low, at) + 1, low)
    if first == low > start:
        return True  # too long for an abbreviation
    word = line[first:at].lstrip(_OPENING)
    if (len(word) == 1 or word.replace(".", "").isdecimal()) and len(word) < 4 and not line[start:first].strip():
        return False  # the number or letter of a list item: "1. Introduction", "2.3. Methods", "b. Others"
    kind = _KINDS.get(word.lower())
    if kind is None and (not word.isupper() or (len(word) > 1 and "." not in word)):
        return True
    if kind == "title":
        return False
    if kind == "numbered" and (word.islower() or len(word) > 1):
        return not line[after : after + 1].isdecimal() and not _is_roman(line, after)
    return _starts(line, after)  # initials (J. R. R. Tolkien, U.S.) and abbreviations that may end a sentence


def _word(line: str, at: int) -> str:
    end = line.find(" ", at)
    return line[at:] if end < 0 else line[at:end]


def _starts(line: str, after: int) -> bool:
    """True if the word at ``after`` usually begins a sentence; "A." does not, as it is another initial."""
    word = _word(line, after).lstrip(_OPENING)
    return word.rstrip(",:;'’").lower() in _STARTERS


def _is_roman(line: str, at: int) -> bool:
    word = _word(line, at).rstrip(".,;:)")
    return bool(word) and not word.strip("IVXLC")
