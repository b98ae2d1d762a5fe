"""From the wikitext of an article to prose: the expensive stage, which worker processes share.

``dump.py``: pages of a dump. ``prose``, below: one pass over the tokens of a page. ``templates.py`` and
``formulas.py``: templates and formulas inside sentences as plain text. ``tidy.py``: the last steps: holes, entities,
lines and sections.

Other templates, tables, references, pictures, categories, comments, long formulas, galleries, listings and magic words
are dropped. Running text, the text of links, list items and headings are kept, items and headings on separate lines. An
empty section is dropped with its heading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from recipe_core.data.text.wikitext import formulas, templates, tidy
from recipe_core.data.text.wikitext.tidy import BREAK, HEADING, HOLE, ITEM
from recipe_core.errors import DataError

_HIDDEN = frozenset({"file", "image", "category", "media"})
"""English namespace names, valid in every wiki: links to them show no text."""
_DROPPED = """
    ce chem categorytree del gallery graph hiero imagemap includeonly indicator inputbox mapframe maplink math nowiki
    pre ref references s score section source strike style syntaxhighlight table templatedata templatestyles timeline
"""
_DROPPED_TAGS = frozenset(_DROPPED.split())
_BLOCKS = "blockquote center dd div dl dt h1 h2 h3 h4 h5 h6 li ol p poem ul"
_BLOCK_TAGS = frozenset(_BLOCKS.split())
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]{2,12})?|simple", re.ASCII)
_OPAQUE = re.compile(
    r"<!--|<(ce|chem|gallery|graph|hiero|imagemap|includeonly|mapframe|math|nowiki|pre|ref|score|source|"
    r"syntaxhighlight|templatedata|timeline)(?=[\s/>])(?:[^<>\"]|\"[^\"<]*\")*>",
    re.IGNORECASE,
)
"""Starts of elements whose content is not wikitext, or is always dropped."""
_MAX_PARSE_COST = 20_000_000
"""Maximum of unclosed elements times length of the page: some seconds of parsing."""
_PROTECTED = re.compile(r"[^\w\s]")


def prose(wikitext: str, namespaces: tuple[str, ...] = ()) -> str:
    """Return the visible text of a page: paragraphs, lists and headings.

    Paragraphs are separated by a blank line, list items by a line end. The result may be empty.

    Args:
        namespaces: this wiki's names of file and category namespaces, in addition to the English names.
    """
    text = _without_opaque(wikitext)
    hidden = _HIDDEN.union(name.lower() for name in namespaces)
    tokenizer = _tokenizer()
    try:
        if _too_costly(text):
            raise ValueError("too costly")
        # Quotes of bold and italics are removed later: the parser fails on paragraphs where they do not pair.
        shown = _Walk(hidden).text(tokenizer.tokenize(text, 0, True))
    except Exception:
        # A page that the parser cannot handle (its own ParserError, too deep a recursion) must neither be lost nor end
        # the run: markup is then removed from inside to outside.
        shown = tidy.unparsed(text)
    return tidy.lines(shown)


def _too_costly(text: str) -> bool:
    """True if parsing could take hours: after vandalism, thousands of elements may be unclosed.

    The parser follows each unclosed element to the end of the page.
    """
    single = text.count("<br") + text.count("<li") + text.count("<hr")
    left_open = max(
        text.count("{{") - text.count("}}"),
        text.count("{|") - text.count("|}"),
        text.count("[") - text.count("]"),
        text.count("<") - 2 * text.count("</") - text.count("/>") - single,
    )
    return left_open * len(text) > _MAX_PARSE_COST


def _tokenizer() -> Any:
    """The tokenizer of mwparserfromhell, in C if available.

    Its tokens are used directly: building the package's tree of nodes takes five times as long as parsing.
    """
    try:
        from mwparserfromhell import parser
        from mwparserfromhell.parser.tokenizer import Tokenizer
    except ImportError as error:
        raise DataError("wikitext needs the package mwparserfromhell: pip install 'recipe-core[text]'") from error
    fast: Any = getattr(parser, "CTokenizer", None)  # None where the package was built without a C compiler
    plain: Any = Tokenizer
    return (fast or plain)()


@lru_cache(maxsize=64)
def _closing(tag: str) -> re.Pattern[str]:
    return re.compile("-->" if tag == "!--" else rf"</{tag}\s*>", re.IGNORECASE)


def _protected(text: str) -> str:
    return _PROTECTED.sub(lambda match: f"&#{ord(match[0])};", text)


def _without_opaque(text: str) -> str:
    """Remove comments, references and the like; convert short formulas and ``<nowiki>`` content to entities.

    They would make the parser twice as slow, and it mistakes a pipe in a formula for one of a table. Each closing tag
    is searched once from left to right: a thousand unclosed elements cost no more than one.
    """
    shown: list[str] = []
    at = 0
    unclosed: set[str] = set()
    for opening in _OPAQUE.finditer(text):
        if opening.start() < at:
            continue  # inside the previous element
        tag = (opening[1] or "!--").lower()
        shown.append(text[at : opening.start()])
        at = opening.end()
        if opening[0].endswith("/>"):
            continue
        closing = None if tag in unclosed else _closing(tag).search(text, at)
        if closing is None:
            unclosed.add(tag)
            if tag == "!--":
                return "".join(shown)  # as MediaWiki does: it comments out the rest
            continue
        if tag == "nowiki":
            shown.append(_protected(text[at : closing.start()]))
        elif tag == "math" and (formula := formulas.plain(text[at : closing.start()])):
            shown.append(_protected(formula))
        elif tag not in ("!--", "ref") or shown[-1].endswith("("):  # "(<ref>...</ref>)"
            shown.append(HOLE)
        at = closing.end()
    shown.append(text[at:])
    return "".join(shown)


class _Frame:
    """An open element; its text is known when its close token comes."""

    __slots__ = ("contents", "keys", "parts", "token")

    def __init__(self, token: Any) -> None:
        self.token = token
        self.parts: list[list[str]] = [[]]
        """The texts between its separators. The first is the name, target or address."""
        self.keys: dict[int, str] = {}
        """Of templates: names of arguments by part number."""
        self.contents = 0
        """Of tags: number of the part between opening and closing tag; 0 if there is none."""

    def part(self, number: int) -> str:
        return "".join(self.parts[number])


class _Walk:
    """One pass over the tokens of a page, with a stack of open elements instead of recursion."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self._hidden = hidden
        self._stack: list[_Frame] = []

    def text(self, tokens: Iterable[Any]) -> str:
        root = _Frame(None)
        self._stack = [root]
        write = root.parts[-1].append
        for token in tokens:
            kind = type(token).__name__
            if kind == "Text":
                write(token["text"])
                continue
            if kind in _OPENS:
                self._stack.append(_Frame(token))
            elif kind in _CLOSES:
                frame = self._stack.pop()
                self._stack[-1].parts[-1].append(_CLOSES[kind](self, frame))
            elif kind in _LITERAL:
                write(_LITERAL[kind] or token["char"])
                continue
            else:
                self._divide(kind)
            write = self._stack[-1].parts[-1].append
        if len(self._stack) != 1:
            raise ValueError("something was left open")
        return root.part(0)

    def _divide(self, kind: str) -> None:
        frame = self._stack[-1]
        if kind == "TemplateParamEquals":
            frame.keys[len(frame.parts) - 1] = frame.part(-1)
            frame.parts[-1] = []
            return
        if kind == "TagCloseOpen":
            frame.contents = len(frame.parts)
        frame.parts.append([])

    def _nothing(self, frame: _Frame) -> str:
        return ""

    def _argument(self, frame: _Frame) -> str:
        """``{{{name|default}}}``"""
        return frame.part(1) if len(frame.parts) > 1 else ""

    def _heading(self, frame: _Frame) -> str:
        return f"\n{HEADING}{frame.token['level']}{frame.part(0)}\n"

    def _external_link(self, frame: _Frame) -> str:
        if len(frame.parts) > 1:
            return frame.part(1)
        return HOLE if frame.token["brackets"] else frame.part(0)  # [http://...] shows a number

    def _wikilink(self, frame: _Frame) -> str:
        target = frame.part(0).strip()
        prefix, colon, _ = target.partition(":")
        if colon:
            prefix = prefix.strip().replace("_", " ").lower()
            if prefix in self._hidden:
                return HOLE
            if len(frame.parts) == 1 and _LANGUAGE.fullmatch(prefix):
                return HOLE  # the same article in another language, which is shown beside the page
        return frame.part(-1) if len(frame.parts) > 1 else target.lstrip(":#")

    def _tag(self, frame: _Frame) -> str:
        markup = frame.token.get("wiki_markup")
        if markup in ("*", "#", ":", ";"):
            return self._item(markup)
        name = frame.part(0).strip().lower()
        if name in _DROPPED_TAGS:
            return "\n\n" if markup else HOLE
        if name in ("br", "hr"):
            return f"\n{BREAK}"
        inside = frame.part(frame.contents) if frame.contents else ""
        if name == "sup":
            return formulas.raised(inside)
        return f"\n\n{inside}\n\n" if name in _BLOCK_TAGS else inside

    def _item(self, markup: str) -> str:
        """A mark for a list item; the colon inside ``; term : definition`` stays a colon."""
        return ": " if markup == ":" and self._last()[-1] not in f"\n{ITEM}" else ITEM

    def _last(self) -> str:
        return next((text for text in reversed(self._stack[-1].parts[-1]) if text), "\n")

    def _template(self, frame: _Frame) -> str:
        name = re.sub(r"^(template|subst|safesubst):", "", frame.part(0).strip().replace("_", " ").lower())
        if not templates.known(name):
            return HOLE
        unnamed: dict[int, str] = {}
        named: dict[str, str] = {}
        count = 0
        for number in range(1, len(frame.parts)):
            value, key = frame.part(number).strip(), frame.keys.get(number)
            if key is None:
                count += 1
                unnamed[count] = value
            elif key.strip().isdecimal():
                unnamed[int(key)] = value
            else:
                named[key.strip()] = value
        return templates.show(name, [unnamed[number] for number in sorted(unnamed)], named) or HOLE


_OPENS = frozenset(
    ("ArgumentOpen", "CommentStart", "ExternalLinkOpen", "HeadingStart", "TagOpenOpen", "TemplateOpen", "WikilinkOpen")
)
_CLOSES: dict[str, Callable[[_Walk, _Frame], str]] = {
    "ArgumentClose": _Walk._argument,
    "CommentEnd": _Walk._nothing,
    "ExternalLinkClose": _Walk._external_link,
    "HeadingEnd": _Walk._heading,
    "TagCloseClose": _Walk._tag,
    "TagCloseSelfclose": _Walk._tag,
    "TemplateClose": _Walk._template,
    "WikilinkClose": _Walk._wikilink,
}
_LITERAL = {"HTMLEntityStart": "&", "HTMLEntityNumeric": "#", "HTMLEntityHex": "", "HTMLEntityEnd": ";"}
"""Entities are resolved at the end, when their characters cannot be mistaken for markup."""
