# ruff: noqa: RUF001 - a dash that looks like a hyphen is what this file writes
"""Wikipedia templates that show their arguments, by name; all others are dropped.

A template is a small program that only its wiki can run. Those below show little more than their arguments, and each
group makes more than one in 1,000 characters of an article. Measures are not converted, languages are not named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Show = Callable[[list[str], Mapping[str, str]], str]
"""Returns the text of a template from its unnamed arguments, in order, and its named arguments."""

_LANGUAGES = ("lang-", "script/")
"""Name prefixes of templates that show their first argument in another language or script."""
_FIRST = """
    abbr angbr as_written big em flag flagcountry flagu ill ipa keypress large larger math midsize mvar nihongo nobold
    nobr noitalic nowrap nq nts sc sic small smaller smallcaps strong sub tooltip vanchor var vr
"""
"""Templates that show their first argument in another style."""
_LAST = "lang resize rtl-lang script tlit transl transliteration wikt-lang"
"""Templates that annotate and show their last argument."""
_QUOTES = "blockquote bquote cquote poemquote quotation quote"
_LISTS = "bulleted_list columns columns-list hlist ordered_list plainlist ubl unbulleted_list"
_UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "sqkm": "km²", "cuft": "cu ft", "ft3": "cu ft", "c": "°C", "f": "°F", "k": "K",
    "c-change": "°C", "acre": "acres", "usgal": "US gal", "oilbbl": "barrels", "mt": "t", "lt": "long tons",
    "pd/sqkm": "/km²", "pd/sqmi": "/sq mi",
}  # fmt: skip
"""Units whose name in {{convert}} differs from their notation."""
_LARGE = {"e3": "thousand", "e6": "million", "e9": "billion", "e12": "trillion",
          "k": "thousand", "M": "million", "G": "billion", "T": "trillion"}  # fmt: skip
_LARGE_UNIT = re.compile(r"(e\d+|[kMGT](?=oilbbl|USgal|cuft))(?=\D)(.+)")
"""Units with a multiplier: ``e6acre``, ``Moilbbl``."""
_POWER = re.compile(r"(?<=[A-Za-z])([23])\b")
_RANGES = ("to", "and", "or", "by", "x", "-", "–")


def known(name: str) -> bool:
    """True if ``show`` may return text for ``name``; arguments of other templates need not be parsed."""
    return name in _SHOWS or name.startswith(_LANGUAGES)


def show(name: str, unnamed: list[str], named: Mapping[str, str]) -> str:
    """Return the plain text of the known template ``name`` (lower case, with spaces)."""
    return _SHOWS.get(name, _first)(unnamed, named)


def _first(unnamed: list[str], named: Mapping[str, str]) -> str:
    return unnamed[0] if unnamed else named.get("text", named.get("quote", named.get("content", "")))


def _last(unnamed: list[str], named: Mapping[str, str]) -> str:
    return unnamed[-1] if unnamed else named.get("text", named.get("content", ""))


def _block(unnamed: list[str], named: Mapping[str, str]) -> str:
    return f"\n\n{_first(unnamed, named)}\n\n"


def _listed(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{ordered list|a|b}}`` and ``{{columns|col1=a|col2=b}}``, without the width or number of columns."""
    items = [text for text in unnamed if not re.fullmatch(r"\d*(em)?", text)]
    items += [text for name, text in named.items() if re.fullmatch(r"content|col\d", name)]
    return "".join(f"\n* {item}" for item in items) + "\n\n"


def _measure(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``5|km|mi`` as ``5 km``, ``5|to|10|km`` as ``5 to 10 km``."""
    shown, rest = "".join(unnamed[:1]), unnamed[1:]
    while len(rest) > 1 and (between := rest[0].removesuffix("(-)")) in _RANGES:
        shown += ("–" if between in "-–" else f" {between} ") + rest[1]
        rest = rest[2:]
    return shown + (_unit(rest[0]) if rest else "")


def _unit(name: str) -> str:
    match = _LARGE_UNIT.fullmatch(name)
    if match and match[1] in _LARGE:
        return f" {_LARGE[match[1]]}{_unit(match[2])}"
    if name.endswith("/d"):
        return f"{_unit(name[:-2])} per day"
    shown = _UNITS.get(name.lower()) or _POWER.sub(lambda power: "²" if power[1] == "2" else "³", name)
    return shown if shown.startswith("/") else f" {shown}"


def _names(text: str) -> list[str]:
    return [name.replace("_", " ") for name in text.split()]


_SHOWS: dict[str, Show] = {
    **dict.fromkeys(_names(_FIRST), _first),
    **dict.fromkeys(_names(_LAST), _last),
    **dict.fromkeys(_names(_QUOTES), _block),
    **dict.fromkeys(_names(_LISTS), _listed),
    **dict.fromkeys(("convert", "cvt"), _measure),
}
