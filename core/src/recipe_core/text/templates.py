# ruff: noqa: RUF001 - quotes, dashes and stops that look alike are what this file tells apart
"""What the simple templates of Wikipedia show, by name; those that are not listed here are dropped.

A template is a small program that only its wiki can run. Those below stand in the middle of sentences and show little
more than what they are given, so leaving them out would leave broken sentences: "about {{convert|5|km}} from". The
output is plain: a measure is not converted (5 km), a language is not named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Show = Callable[[list[str], Mapping[str, str]], str]
"""From the unnamed arguments, in order, and the named ones to the text that is shown."""

_FIRST = """
    abbr angbr as_written bdi big code columns-list crossreference div_col em flag flagcountry flagu gaps ill
    interlanguage_link italic_correction kbd keypress large larger lc lcfirst math mono monospace mvar nobold nobr
    nobreak noitalic not_a_typo nowrap nowraplinks nts num proper_name resize sc sic small small_caps smallcaps smaller
    smcaps strong sub tooltip tq typo uc ucfirst var vanchor visible_anchor
"""
"""Templates that show their first argument, differently dressed."""
_LAST = "lang rtl-lang script tlit transl transliteration wikt-lang"
"""Templates that say something about their last argument and show it."""
_QUOTES = ("blockquote", "block quote", "bq", "bquote", "centered pull quote", "cquote", "poem quote", "poemquote",
           "pull quote", "quotation", "quote", "verse translation")  # fmt: skip
_TEXTS = {
    "!": "|", "=": "=", "'": "'", "'s": "'s", "s'": "s'", '"': '"', "'\"": "'\"", "\"'": "\"'", "pi": "π",
    "okina": "ʻ", "hamza": "ʾ", "ayin": "ʿ", "asper": "ʽ",
    "dot": " · ", "·": " · ", "middot": " · ", "•": " • ", "bull": " • ",
    "ndash": "–", "–": "–", "en dash": "–", "snd": " – ", "spnd": " – ", "spaced ndash": " – ", "dash": " – ",
    "mdash": "—", "—": "—", "em dash": "—", "spaced mdash": " — ", "smd": " — ",
    "nbsp": " ", "space": " ", "spaces": " ", "thinsp": " ", "thin space": " ", "hair space": " ", "hairsp": " ",
    "break": "\n\n", "pb": "\n\n", "paragraph break": "\n\n", "clear": "", "shy": "", "zwsp": "", "wbr": "",
}  # fmt: skip
"""Templates that always show the same."""
_BEFORE = {
    "circa": "c. ", "c.": "c. ", "ca.": "c. ", "floruit": "fl. ", "fl.": "fl. ",
    "us$": "US$", "usd": "US$", "a$": "A$", "aud": "A$", "c$": "C$", "cad": "C$", "£": "£", "gbp": "£", "€": "€",
    "euro": "€", "eur": "€", "¥": "¥", "jpy": "¥", "₹": "₹", "inr": "₹",
}  # fmt: skip
"""What templates put before their argument, or before two years with a dash between them."""
_SHIPS = ("hms", "uss", "hmas", "hmcs", "rms", "sms", "ss", "mv", "css", "usns", "uscgc")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "sqyd": "sq yd", "sqkm": "km²", "km2": "km²", "m2": "m²", "cm2": "cm²",
    "m3": "m³", "km3": "km³", "cc": "cm³", "cuft": "cu ft", "cuyd": "cu yd", "cumi": "cu mi", "c": "°C", "f": "°F",
    "k": "K", "l": "L", "kph": "km/h", "mi/h": "mph", "acre": "acres", "impgal": "imp gal", "usgal": "US gal",
    "g/cm3": "g/cm³", "kg/m3": "kg/m³", "/sqkm": "/km²", "pd/sqkm": "/km²", "pd/sqmi": "/sq mi",
}  # fmt: skip
"""Units whose name in {{convert}} is not how they are written."""
_RANGES = {
    "to": " to ", "and": " and ", "or": " or ", "by": " by ", "x": " × ", "*": " × ", "-": "–", "–": "–", "to(-)": "–",
    "and(-)": " and ", "+/-": " ± ", "±": " ± ", "+": " + ", "to about": " to about ", ",": ", ",
}  # fmt: skip


def show(name: str, unnamed: list[str], named: Mapping[str, str]) -> str | None:
    """What the template ``name`` (lower case, with spaces) shows in plain text; None for one that is dropped."""
    function = _SHOWS.get(name)
    if function is None:
        if name.startswith("lang-") and len(name) <= 12:  # {{lang-fr|texte}}: French: texte
            function = _first
        elif ":" in name:
            return _parser_function(name)
        else:
            return None
    return function(unnamed, named)


def known(name: str) -> bool:
    """Whether ``show`` may give something: arguments of others need no work."""
    return name in _SHOWS or name.startswith("lang-") or ":" in name


def _parser_function(name: str) -> str | None:
    function, _, argument = name.partition(":")
    return argument.strip() if function in ("formatnum", "lc", "uc", "lcfirst", "ucfirst") else None


def _first(unnamed: list[str], named: Mapping[str, str]) -> str:
    return unnamed[0] if unnamed else named.get("text", named.get("quote", named.get("content", "")))


def _last(unnamed: list[str], named: Mapping[str, str]) -> str:
    return unnamed[-1] if unnamed else named.get("text", "")


def _joined(unnamed: list[str], named: Mapping[str, str]) -> str:
    return "".join(unnamed)


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


def _any_ship(unnamed: list[str], named: Mapping[str, str]) -> str:
    return " ".join(part for part in unnamed[:2] if part)


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


def _only_date(unnamed: list[str], named: Mapping[str, str]) -> str:
    return _date(unnamed)


def _convert(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``5|km|mi`` as ``5 km``, ``5|to|10|km`` as ``5 to 10 km``, ``5|ft|8|in`` as ``5 ft 8 in``."""
    if not unnamed:
        return ""
    shown, rest = unnamed[0], unnamed[1:]
    while len(rest) > 1 and rest[0].lower() in _RANGES:
        shown += _RANGES[rest[0].lower()] + rest[1]
        rest = rest[2:]
    if rest:
        shown += _unit(rest[0])
    if len(rest) > 2 and rest[0] in ("ft", "lb", "st", "mi", "yd", "oz") and rest[1][:1].isdecimal():
        shown += f" {rest[1]}{_unit(rest[2])}"
    return shown


def _unit(name: str) -> str:
    shown = _UNITS.get(name.lower(), name)
    return shown if shown.startswith("/") else f" {shown}"


def _value(unnamed: list[str], named: Mapping[str, str]) -> str:
    """``{{val|5.2|0.1|u=m}}``: 5.2±0.1 m, with ``e`` as a power of ten."""
    shown = "±".join(unnamed[:2])
    power = named.get("e")
    unit = named.get("u", named.get("ul", ""))
    return " ".join(part for part in (shown + (f"×10^{power}" if power else ""), unit) if part)


def _power(unnamed: list[str], named: Mapping[str, str]) -> str:
    return f"×10^{_first(unnamed, named)}"


def _fraction(unnamed: list[str], named: Mapping[str, str]) -> str:
    whole, parts = (unnamed[0] + " ", unnamed[1:]) if len(unnamed) > 2 else ("", unnamed)
    return whole + ("1/" if len(parts) == 1 else "") + "/".join(parts)


def _nihongo(unnamed: list[str], named: Mapping[str, str]) -> str:
    english, *others = unnamed or [""]
    inside = ", ".join(other for other in others if other)
    return english + (f" ({inside})" if inside and english else inside)


def _gloss(unnamed: list[str], named: Mapping[str, str]) -> str:
    text = _first(unnamed, named)
    return f"'{text}'" if text else ""


_SHOWS: dict[str, Show] = {
    **{name.replace("_", " "): _first for name in _FIRST.split()},
    **dict.fromkeys(_LAST.split(), _last),
    **{name: _fixed(text) for name, text in _TEXTS.items()},
    **{name: _before(prefix) for name, prefix in _BEFORE.items()},
    **{name: _ship(name.upper()) for name in _SHIPS},
    **dict.fromkeys(_QUOTES, _block),
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("birth date", "death date", "start date", "end date", "film date", "dts", "date"), _only_date),
    **dict.fromkeys(("frac", "sfrac", "fraction"), _fraction),
    **dict.fromkeys(("chem", "chem2", "linktext"), _joined),
    **dict.fromkeys(("hlist", "ubl", "unbulleted list", "flatlist", "plainlist"), _listed),
    **dict.fromkeys(("gloss", "trans", "literal translation", "lit", "lit.", "translation"), _gloss),
    **dict.fromkeys(("nihongo", "nihongo2", "nihongo3", "korean"), _nihongo),
    **dict.fromkeys(("e", "e-sp", "esp", "10^"), _power),
    "as of": _as_of,
    "ship": _any_ship,
    "sclass": _any_ship,
    "val": _value,
}
