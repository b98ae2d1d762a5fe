"""The wikitext of an article as prose: the costly stage, which worker processes share.

``dump.py``: pages of a dump. ``prose``, below: one pass over the tokens of a page. ``templates.py`` (with
``measures.py``) and ``formulas.py``: templates and formulas that stand inside sentences, as plain text. ``tidy.py``:
the last steps: holes, entities, lines and sections.

Templates of other names, tables, references, pictures, categories, comments, long formulas, galleries, listings and
magic words are dropped. Running text, the text of links, list items and headings stay, items and headings as lines of
their own. A section that is left empty goes with its heading.
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
"""English names of namespaces that every wiki knows: links to them show no text."""
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
"""Starts of elements whose content is no wikitext, or is dropped in any case."""
_PATIENCE = 20_000_000
"""Things left open times the length of the page: some seconds of parsing."""
_SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_PROTECTED = re.compile(r"[^\w\s]")


def prose(wikitext: str, namespaces: tuple[str, ...] = ()) -> str:
    """The text that a reader of the page sees in its paragraphs, lists and headings.

    Paragraphs are separated by a blank line, list items by a line end. The result may be empty.

    Args:
        namespaces: what this wiki calls its files and categories, beside the English names.
    """
    text = _without_opaque(wikitext)
    hidden = _HIDDEN.union(name.lower() for name in namespaces)
    tokenizer = _tokenizer()
    try:
        if _too_costly(text):
            raise ValueError("too costly")
        # Quotes of bold and italics are taken off later: pairing them is where the parser gives up on paragraphs.
        shown = _Walk(hidden).text(tokenizer.tokenize(text, 0, True))
    except Exception:
        # A page that the parser cannot take (its own ParserError, too deep a recursion) must not be lost, nor end the
        # run: what is nested is then taken off from inside to outside.
        shown = tidy.unparsed(text)
    return tidy.lines(shown)


def _too_costly(text: str) -> bool:
    """True if so much is opened and not closed, as vandals do, that the parser could take hours for the page.

    The parser follows everything that is opened to the end of the page before it gives up.
    """
    single = text.count("<br") + text.count("<li") + text.count("<hr")
    left_open = max(
        text.count("{{") - text.count("}}"),
        text.count("{|") - text.count("|}"),
        text.count("[") - text.count("]"),
        text.count("<") - 2 * text.count("</") - text.count("/>") - single,
    )
    return left_open * len(text) > _PATIENCE


def _tokenizer() -> Any:
    """The tokenizer of mwparserfromhell, in C where there is one.

    Its tokens are read as they are: making the package's tree of nodes first takes five times as long as the parsing.
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
    """``text`` with entities for all that might be markup."""
    return _PROTECTED.sub(lambda match: f"&#{ord(match[0])};", text)


def _without_opaque(text: str) -> str:
    """``text`` without comments, references and the like; short formulas and what ``<nowiki>`` protects as entities.

    The parser would be twice as slow with them, and takes a pipe in a formula for one of a table. Each is searched
    from left to right once, so that many that are never closed cost no more than one.
    """
    shown: list[str] = []
    at = 0
    unclosed: set[str] = set()
    for opening in _OPAQUE.finditer(text):
        if opening.start() < at:
            continue  # inside the one before
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
    """Something that was opened and not closed yet: what it shows is known when its close token comes."""

    __slots__ = ("contents", "keys", "parts", "token")

    def __init__(self, token: Any) -> None:
        self.token = token
        self.parts: list[list[str]] = [[]]
        """The text between its separators. The first is the name, the target or the address."""
        self.keys: dict[int, str] = {}
        """Of templates: number of a part -> name of this argument."""
        self.contents = 0
        """Of tags: number of the part between the opening and the closing tag; 0 where it has none."""

    def part(self, number: int) -> str:
        return "".join(self.parts[number])


class _Walk:
    """One pass over the tokens of a page, with a stack of what is open, so that no depth is too deep."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self._hidden = hidden
        self._stack: list[_Frame] = []

    def text(self, tokens: Iterable[Any]) -> str:
        """The text that ``tokens`` show, with the marks of :mod:`recipe_core.data.text.wikitext.tidy` in it."""
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
        """Begin another part of the innermost frame."""
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
            return templates.raised(inside)
        if name == "sub" and inside.isdecimal() and self._last()[-1:].isdecimal():
            return inside.translate(_SUBSCRIPT)  # 20<sub>16</sub> is not 2016
        if name == "poem":
            inside = inside.strip().replace("\n", f"\n{BREAK}")
        return f"\n\n{inside}\n\n" if name in _BLOCK_TAGS else inside

    def _item(self, markup: str) -> str:
        """A mark for a list item; the colon inside of ``; term : definition`` stays one."""
        return ": " if markup == ":" and self._last()[-1] not in f"\n{ITEM}" else ITEM

    def _last(self) -> str:
        """The last text inside the innermost open element."""
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
        shown = templates.show(name, [unnamed[number] for number in sorted(unnamed)], named)
        return shown or HOLE


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
"""Entities stay as they are until the end, when what they stand for cannot be taken for markup any more."""
