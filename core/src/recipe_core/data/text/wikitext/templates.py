# ruff: noqa: RUF001 - quotes, dashes and stops that look alike are what this file tells apart
"""Simple Wikipedia templates as text, by name; all others are dropped.

A template is a small program that only its wiki can run. The templates below occur inside sentences and show little
more than their arguments, so dropping them would leave broken sentences: "about {{convert|5|km}} from". The output is
plain: a measure is not converted (5 km), a language is not named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from recipe_core.data.text.wikitext import measures

Show = Callable[[list[str], Mapping[str, str]], str]
"""Returns the text of a template from its unnamed arguments, in order, and its named arguments."""

_LANGUAGES = ("lang-", "script/")
"""Name prefixes of templates that show their first argument in another language or script."""
_FIRST = """
    abbr angbr as_written bdi big code crossreference em flag flagcountry flagu format_price formatprice gaps grapheme
    hebrew ill interlanguage_link ipa italic_correction kbd keypress large larger lc lcfirst math midsize mono monospace
    mvar nobold nobr nobreak noitalic not_a_typo nowrap nowraplinks nq nts num polytonic proper_name sc sic small
    small_caps smallcaps smaller smcaps strong sub tooltip tq typo uc ucfirst unicode var vanchor visible_anchor vr
"""
"""Templates that show their first argument in another style."""
_LAST = "lang resize rtl-lang script tlit transl transliteration wikt-lang"
"""Templates that annotate and show their last argument."""
_QUOTES = ("blockquote", "block quote", "bq", "bquote", "centered pull quote", "cquote", "poem quote", "poemquote",
           "pull quote", "quotation", "quote", "verse translation")  # fmt: skip
_TEXTS = {
    "!": "|", "=": "=", "'": "'", "'s": "'s", "s'": "s'", '"': '"', "'\"": "'\"", "\"'": "\"'", "pi": "π",
    "' \"": "'\"", "\" '": "\"'", '-"': '"', "-'": "'", "eqm": "⇌", "rarr": "→", "minus": "−", "times": "×",
    "okina": "ʻ", "hamza": "ʾ", "ayin": "ʿ", "asper": "ʽ",
    "dot": " · ", "·": " · ", "middot": " · ", "•": " • ", "bull": " • ",
    "ndash": "–", "–": "–", "en dash": "–", "dash": " – ",
    "snd": " – ", "snds": " – ", "spnd": " – ", "spaced ndash": " – ",
    "mdash": "—", "—": "—", "mdashb": "—", "em dash": "—", "spaced mdash": " — ", "smd": " — ",
    "nbsp": " ", "space": " ", "spaces": " ", "thinsp": " ", "thin space": " ", "hair space": " ", "hairsp": " ",
    "break": "\n\n", "pb": "\n\n", "paragraph break": "\n\n", "clear": "", "shy": "", "zwsp": "", "wbr": "",
}  # fmt: skip
"""Templates with a fixed text."""
_BEFORE = {
    "circa": "c. ", "c.": "c. ", "ca.": "c. ", "floruit": "fl. ", "fl.": "fl. ",
    "us$": "US$", "usd": "US$", "a$": "A$", "aud": "A$", "c$": "C$", "cad": "C$", "£": "£", "gbp": "£", "€": "€",
    "euro": "€", "eur": "€", "¥": "¥", "jpy": "¥", "₹": "₹", "inr": "₹",
}  # fmt: skip
"""Prefixes of templates with one argument, or with two years, which are joined by a dash."""
_ACCIDENTALS = {"flat": "♭", "sharp": "♯", "natural": "♮", "doubleflat": "𝄫", "doublesharp": "𝄪"}
_NUMBERS = {"us patent": "U.S. Patent", "oclc": "OCLC", "issn": "ISSN", "isbn": "ISBN", "doi": "doi:"}
"""Prefixes of templates with a number."""
_SHIPS = ("hms", "uss", "hmas", "hmcs", "rms", "sms", "ss", "mv", "css", "usns", "uscgc")
_RAISED = re.compile(r"[-+−–]?(\d{1,3}|n)|\d?[-+−–]")
_SUPERSCRIPT = str.maketrans("0123456789+-−–n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻ⁿ")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip


def show(name: str, unnamed: list[str], named: Mapping[str, str]) -> str | None:
    """Return the plain text of the template ``name`` (lower case, with spaces); None if it is dropped."""
    function = _SHOWS.get(name)
    if function is None:
        if name.startswith(_LANGUAGES):  # {{lang-fr|texte}}: French: texte
            function = _first
        elif ":" in name:
            return _parser_function(name)
        else:
            return None
    return function(unnamed, named)


def known(name: str) -> bool:
    """True if ``show`` may return text for ``name``; arguments of other templates need not be parsed."""
    return name in _SHOWS or name.startswith(_LANGUAGES) or ":" in name


def _parser_function(name: str) -> str | None:
    function, _, argument = name.partition(":")
    return argument.strip() if function in ("formatnum", "lc", "uc", "lcfirst", "ucfirst") else None


def raised(text: str) -> str:
    """Return ``text`` as a superscript: 10<sup>6</sup> is not 106, nor SO<sub>4</sub><sup>2-</sup> SO42-."""
    return text.translate(_SUPERSCRIPT) if _RAISED.fullmatch(text) else text


def _superscript(unnamed: list[str], named: Mapping[str, str]) -> str:
    return raised(unnamed[0]) if unnamed else ""


def _first(unnamed: list[str], named: Mapping[str, str]) -> str:
    return unnamed[0] if unnamed else named.get("text", named.get("quote", named.get("content", "")))


def _last(unnamed: list[str], named: Mapping[str, str]) -> str:
    return unnamed[-1] if unnamed else named.get("text", named.get("content", ""))


def _columns(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{columns-list|2|...}}`` shows what comes after the number of columns; of ``{{div col|2}}`` that is outside."""
    return next((text for text in reversed(unnamed) if not re.fullmatch(r"\d*(em)?", text)), named.get("content", ""))


def _numbered_columns(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{columns|col1=...|col2=...}}``"""
    return "\n\n".join(named[f"col{number}"] for number in range(1, 10) if f"col{number}" in named)


def _items(unnamed: list[str], named: Mapping[str, str]) -> str:
    return "".join(f"\n* {item}" for item in unnamed if item) + "\n"


def _chemical(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{chem|CO|3|2-}}``: CO3²⁻."""
    return "".join(raised(part) if part[-1:] in ("+", "-", "−") else part for part in unnamed)


def _listed(unnamed: list[str], named: Mapping[str, str]) -> str:
    return ", ".join(item for item in unnamed if item)


def _fixed(text: str) -> Show:
    return lambda unnamed, named: text


def _before(prefix: str) -> Show:
    def shown(unnamed: list[str], named: Mapping[str, str]) -> str:
        return prefix + "–".join(unnamed[:2]) if unnamed and unnamed[0] else ""

    return shown


def _ship(prefix: str) -> Show:
    """``{{HMS|Victory|1765|6}}``: the year, or hull number, is the name of an article and not always shown."""
    return lambda unnamed, named: f"{prefix} {unnamed[0]}" if unnamed else prefix


def _block(unnamed: list[str], named: Mapping[str, str]) -> str:
    return f"\n\n{_first(unnamed, named)}\n\n"


def _date(unnamed: list[str]) -> str:
    """``2015|3|12`` as ``12 March 2015``; month and day may be missing."""
    year, month, day = (*unnamed[:3], "", "", "")[:3]
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = _MONTHS[int(month) - 1]
    day = day.lstrip("0") if month else ""
    return " ".join(part for part in (day, month, year) if part)


def _as_of(unnamed: list[str], named: Mapping[str, str]) -> str:
    start = "since" if "since" in named else "as of"
    return f"{start if {'lc', 'df_lc'} & named.keys() else start.capitalize()} {_date(unnamed)}"


def _nihongo(unnamed: list[str], named: Mapping[str, str]) -> str:
    english, *rest = unnamed or [""]
    inside = ", ".join(part for part in rest if part)
    return english + (f" ({inside})" if inside and english else inside)


def _music(unnamed: list[str], named: Mapping[str, str]) -> str:
    kind = unnamed[0].lower() if unnamed else ""
    return "/".join(unnamed[1:3]) if kind == "time" else _ACCIDENTALS.get(kind, "")


def _number(prefix: str) -> Show:
    return lambda unnamed, named: f"{prefix} {unnamed[0]}" if unnamed and unnamed[0] else ""


_SHOWS: dict[str, Show] = {
    **{name.replace("_", " "): _first for name in _FIRST.split()},
    **dict.fromkeys(_LAST.split(), _last),
    **{name: _fixed(text) for name, text in _TEXTS.items()},
    **{name: _before(prefix) for name, prefix in _BEFORE.items()},
    **{name: _ship(name.upper()) for name in _SHIPS},
    **dict.fromkeys(_QUOTES, _block),
    **{name: _number(prefix) for name, prefix in _NUMBERS.items()},
    **dict.fromkeys(("convert", "cvt"), measures.convert),
    **dict.fromkeys(("coord", "coor dm", "coor dms"), measures.coordinates),
    **dict.fromkeys(("frac", "sfrac", "fraction"), measures.fraction),
    **dict.fromkeys(("chem", "chem2"), _chemical),
    "sup": _superscript,
    "columns": _numbered_columns,
    **dict.fromkeys(("ordered list", "bulleted list", "unordered list"), _items),
    **dict.fromkeys(("columns-list", "div col", "colbegin", "col-begin", "columns list"), _columns),
    **dict.fromkeys(("hlist", "ubl", "unbulleted list", "flatlist", "plainlist"), _listed),
    **dict.fromkeys(("nihongo", "nihongo2", "nihongo3"), _nihongo),
    **dict.fromkeys(("e", "e-sp", "esp", "10^"), measures.power),
    "as of": _as_of,
    "val": measures.value,
    "music": _music,
}
