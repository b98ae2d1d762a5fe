# ruff: noqa: RUF001, RUF002 - signs of measures that look like letters are what this file writes
"""Wikipedia templates for measures, numbers and places as text, without unit conversion.

Called by :mod:`recipe_core.data.text.wikitext.templates` with the unnamed arguments, in order, and the named ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "sqyd": "sq yd", "sqkm": "km²", "cc": "cm³", "cuft": "cu ft", "ft3": "cu ft",
    "cuyd": "cu yd", "cumi": "cu mi", "c": "°C", "f": "°F", "k": "K", "c-change": "°C", "f-change": "°F", "l": "L",
    "kph": "km/h", "mi/h": "mph", "acre": "acres", "impgal": "imp gal", "usgal": "US gal", "oilbbl": "barrels",
    "bbl": "barrels", "mt": "t", "lt": "long tons", "st": "short tons", "pd/sqkm": "/km²", "pd/sqmi": "/sq mi",
}  # fmt: skip
"""Units whose name in {{convert}} differs from their notation."""
_LARGE = {"e3": "thousand", "e6": "million", "e9": "billion", "e12": "trillion",
          "k": "thousand", "M": "million", "G": "billion", "T": "trillion"}  # fmt: skip
_LARGE_UNIT = re.compile(r"(e\d+|[kMGT](?=oilbbl|USgal|cuft|bbl))(?=\D)(.+)")
"""Units with a multiplier: ``e6acre``, ``Moilbbl``."""
_POWER = re.compile(r"(?<=[A-Za-z])([23])\b")
_RANGES = {
    "to": " to ", "and": " and ", "or": " or ", "by": " by ", "x": " × ", "*": " × ", "-": "–", "–": "–", "to(-)": "–",
    "and(-)": " and ", "+/-": " ± ", "±": " ± ", "+": " + ", "to about": " to about ", ",": ", ",
}  # fmt: skip
_MINOR = ("ft", "lb", "st", "mi", "yd", "oz")
"""Units that a smaller unit may follow: 5 ft 8 in."""
_ARCS = "°′″"


def convert(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``5|km|mi`` as ``5 km``, ``5|to|10|km`` as ``5 to 10 km``, ``5|ft|8|in`` as ``5 ft 8 in``."""
    if not unnamed:
        return ""
    shown, rest = _grouped(unnamed[0]), unnamed[1:]
    while len(rest) > 1 and rest[0].lower() in _RANGES:
        shown += _RANGES[rest[0].lower()] + _grouped(rest[1])
        rest = rest[2:]
    if rest:
        shown += _unit(rest[0])
    if len(rest) > 2 and rest[0] in _MINOR and rest[1][:1].isdecimal():
        shown += f" {rest[1]}{_unit(rest[2])}"
    return shown


def _grouped(number: str) -> str:
    """``52419`` as ``52,419``, as the template does."""
    whole, point, fraction = number.partition(".")
    digits = whole.lstrip("-−+")
    if not (digits.isdecimal() and digits.isascii() and len(digits) > 3):
        return number
    return whole[: -len(digits)] + f"{int(digits):,}" + point + fraction


def _unit(name: str) -> str:
    match = _LARGE_UNIT.fullmatch(name)
    large = _LARGE.get(match[1]) if match else None
    if match and large:
        return f" {large}{_unit(match[2])}"
    if name.endswith("/d"):
        return f"{_unit(name[:-2])} per day"
    shown = _UNITS.get(name.lower()) or _POWER.sub(lambda power: "²" if power[1] == "2" else "³", name)
    return shown if shown.startswith("/") else f" {shown}"


def value(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{val|5.2|0.1|u=m}}``: 5.2±0.1 m, with ``e`` as a power of ten."""
    first, error = (*unnamed[:2], "", "")[:2]
    shown = first + (error if error.startswith("(") else f"±{error}" if error else "")
    power = named.get("e")
    unit = named.get("u", named.get("ul", ""))
    return " ".join(part for part in (shown + (f"×10^{power}" if power else ""), unit) if part)


def power(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{e|9}}``: ×10^9."""
    return f"×10^{unnamed[0]}" if unnamed else ""


def fraction(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{frac|3|1|2}}``: 3 1/2."""
    whole, parts = (unnamed[0] + " ", unnamed[1:]) if len(unnamed) > 2 else ("", unnamed)
    return whole + ("1/" if len(parts) == 1 else "") + "/".join(parts)


def coordinates(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``13|19|N|169|9|W``: 13°19′N 169°9′W; empty if they are shown only at the top of the page."""
    if named.get("display", "inline") in ("title", "t"):
        return ""
    halves: list[str] = []
    numbers: list[str] = []
    for part in unnamed:
        if part in ("N", "S", "E", "W"):
            halves.append("".join(map("".join, zip(numbers, _ARCS, strict=False))) + part)
            numbers = []
        elif re.fullmatch(r"[-−+]?[\d.]+", part):
            numbers.append(part)
    if not halves and len(numbers) == 2:  # {{coord|13.3|-169.1}}
        return ", ".join(numbers)
    return " ".join(halves) if len(halves) == 2 else ""
