# ruff: noqa: RUF001 - quotes, dashes and stops that look alike are what this file tells apart
"""Last steps from wikitext to prose: leftovers of markup, holes in sentences, entities, lines and sections.

Control characters, which XML cannot contain, mark elements: HOLE for a dropped element inside a line; at the start of a
line, ITEM for a list item, BREAK for a line of the same paragraph, HEADING and its level for a heading.
"""

from __future__ import annotations

import html
import re

HOLE = "\x01"
HEADING = "\x02"
ITEM = "\x03"
BREAK = "\x04"

_TEXT = "text"
_BETWEEN = {(_TEXT, _TEXT): " ", (BREAK, _TEXT): " ", (ITEM, ITEM): "\n", (_TEXT, BREAK): "\n", (BREAK, BREAK): "\n",
            (ITEM, BREAK): "\n", (BREAK, ITEM): "\n"}  # fmt: skip
"""Separators of consecutive lines by their marks; a blank line for all other pairs."""
_QUOTES = re.compile(r"'{2,}")
_MAGIC = re.compile(r"__[A-Z]{3,}__")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,31});")
_NO_MARKS = {ord(HOLE): None, ord(HEADING): None, ord(ITEM): None, ord(BREAK): None}
_SPACES = re.compile(r"[\t\r\f\v \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")
_WORD = re.compile(r"[^\W_]")

_INNER_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_INNER_TABLE = re.compile(r"\{\|(?:[^{|]|\{(?!\|)|\|(?!\}))*\|\}")
_INNER_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_WEB_LINK = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]]+ *([^\[\]]*)\]")
_HIDDEN_LINK = re.compile(r"\s*(?:file|image|category|media)\s*:", re.IGNORECASE)
_BLOCK_TAG = re.compile(
    r"</?(?:blockquote|br|center|dd|div|dl|dt|gallery|h[1-6]|hr|li|ol|p|poem|pre|section|source|syntaxhighlight|table|"
    r"tbody|td|th|tr|ul)\b[^<>]*>",
    re.IGNORECASE,
)
_INLINE_TAG = re.compile(
    r"</?(?:abbr|b|bdi|big|cite|code|del|dfn|em|font|i|includeonly|ins|kbd|math|noinclude|nowiki|onlyinclude|ref|"
    r"references|rp|rt|ruby|s|samp|small|span|strike|strong|sub|sup|templatestyles|tt|u|var|wbr)\b[^<>]*>",
    re.IGNORECASE,
)
_OPEN_TEMPLATE = re.compile(r"\{\{.*")
_OPEN_LINK = re.compile(r"\[\[[^|\[\]]*\|")
_TOKENS = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||\|\}")

_HOLES = re.compile(rf"{HOLE}[\s{HOLE}]*{HOLE}")
_EMPTY_PARENTHESIS = re.compile(rf" ?[(（][\s,;:–-]*{HOLE}[\s,;:–{HOLE}-]*[)）]")
_HOLE_FIRST = re.compile(rf"^ ?{HOLE}[ ,.;:)–—-]*")
_HOLE_AFTER_OPENING = re.compile(rf"(?<=[(\[]) ?{HOLE}[ ,;:–{HOLE}-]*")
_HOLE_BEFORE_STOP = re.compile(rf" ?[,;:]? ?{HOLE} ?(?=[,.;:!?)\]])")
_HOLE_BETWEEN_WORDS = re.compile(rf" {HOLE} ?|{HOLE} |(?<=\w){HOLE}(?=\w)")


def unparsed(text: str) -> str:
    """Remove templates, tables, links and tags from inside to outside, without a parser."""
    text = _WEB_LINK.sub(r"\1", text)
    for _ in range(50):
        shorter = _INNER_LINK.sub(_link, _INNER_TABLE.sub("\n\n", _INNER_TEMPLATE.sub(HOLE, text)))
        if shorter == text:
            break
        text = shorter
    return _INLINE_TAG.sub("", _BLOCK_TAG.sub(" ", text))


def _link(match: re.Match[str]) -> str:
    target, pipe, shown = match[1].partition("|")
    if _HIDDEN_LINK.match(target):
        return ""
    return shown.rpartition("|")[2] if pipe else target.lstrip(":#")


def _without_tokens(line: str) -> str:
    """Remove unpaired markup from a line; rows of a table are dropped."""
    if line.startswith(("{|", "|", "!")):
        return ""
    return _TOKENS.sub("", _OPEN_LINK.sub("", _OPEN_TEMPLATE.sub("", line)))


def lines(text: str) -> str:
    """Return prose from text with marks: paragraphs separated by a blank line, list items by a line end."""
    text = _MAGIC.sub("", _QUOTES.sub(_apostrophes, text))
    broken = _TOKENS.search(text) is not None
    if broken or "<" in text:
        text = unparsed(text)
    blocks: list[str] = []
    pending: list[tuple[int, str]] = []
    """Headings of sections that have no text so far."""
    before = ""
    """Mark of the previous line; empty if that line was empty."""
    for line in text.split("\n"):
        mark, level, line = _marked(line)
        line = _tidy(_without_tokens(line) if broken else line)
        if mark == HEADING:
            pending = [(above, title) for above, title in pending if above < level]
            pending += [(level, line)] if line else []
        elif line:
            between = _BETWEEN.get((before, mark), "\n\n")
            if pending:
                blocks += [f"\n\n{title}" for _, title in pending]
                between = "\n\n"
            blocks.append(between + line)
            pending = []
        before = mark if line or mark == ITEM else ""
    return "".join(blocks).strip()


def _marked(line: str) -> tuple[str, int, str]:
    if line.startswith(HEADING) and line[1:2].isdecimal():
        return HEADING, int(line[1]), line[2:]
    if line.startswith(BREAK):
        return BREAK, 0, line.lstrip(f"{BREAK}{ITEM}*#:; ")
    if line.startswith((ITEM, "*", "#", ":", ";")):
        return ITEM, 0, line.lstrip(f"{ITEM}*#:; ")
    inside = line.strip()
    if inside.startswith("=") and inside.endswith("=") and (title := inside.strip("=")):  # the parser did not see it
        return HEADING, min(len(inside) - len(inside.lstrip("=")), 6), title
    return _TEXT, 0, line


def _apostrophes(match: re.Match[str]) -> str:
    """Remove quotes of bold and italics: two, three or five; a fourth, and each beyond five, is an apostrophe."""
    count = len(match[0])
    return "'" if count == 4 else "'" * (count - 5)


def _tidy(line: str) -> str:
    if not line:
        return line
    line = _SPACES.sub(" ", line)
    if HOLE in line:
        line = _close_holes(line.replace("&nbsp;", " "))
    if "&" in line:
        line = _ENTITY.sub(lambda match: html.unescape(match[0]), line).replace("\n", " ")
    if not line.isascii():
        line = _SPACES.sub(" ", _INVISIBLE.sub("", line))
    line = line.translate(_NO_MARKS).strip()
    return line if _WORD.search(line) else ""


def _close_holes(line: str) -> str:
    line = _HOLES.sub(HOLE, line)
    line = _HOLES.sub(HOLE, _EMPTY_PARENTHESIS.sub(f" {HOLE}", line))  # a dropped parenthesis leaves another hole
    line = _HOLE_FIRST.sub("", line)
    line = _HOLE_AFTER_OPENING.sub("", line)
    line = _HOLE_BEFORE_STOP.sub("", line)
    return _HOLE_BETWEEN_WORDS.sub(" ", line).replace(HOLE, "")
