"""Pages of MediaWiki's XML dumps (``pages-articles``), read by mwxml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import ParseError

from recipe_core.data.text.stream import TextStream
from recipe_core.data.text_settings import Counts, Record, TextInput
from recipe_core.errors import DataError

_ARTICLES = 0
_WITHOUT_TEXT = (-2, 6, 14)
"""Namespaces of media, files and categories: links to them show no text."""
_MARKUP = 20_000
"""Characters of XML that may surround the text of a page."""
_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)


def pages(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    """Yield the wikitext of the articles of a dump; redirects and other namespaces are skipped and counted.

    Raises:
        DataError: the XML is damaged or truncated, or not a dump.
    """
    try:
        import mwxml
        from mwxml.element_iterator import ElementIterator
        from mwxml.errors import MalformedXML
    except ImportError as error:
        raise DataError(
            f"{stream.path}: MediaWiki dumps need the packages mwxml and mwparserfromhell: pip install "
            "'recipe-core[text]'"
        ) from error

    guarded = _Guarded(stream, settings.max_document)
    number = 0
    namespaces: tuple[str, ...] = ()
    try:
        root = ElementIterator.from_file(guarded)
        if root.tag != "mediawiki":
            raise MalformedXML(f"expected <mediawiki>, found <{root.tag}>")
        named: dict[str, Any] = {}
        for element in root:
            if element.tag == "siteinfo":  # missing in an excerpt of a dump
                site_namespaces = mwxml.SiteInfo.from_element(element).namespaces or ()
                named = {namespace.name: namespace for namespace in site_namespaces}
                namespaces = tuple(name for name, known in named.items() if known.id in _WITHOUT_TEXT)
                continue
            number += 1
            page = mwxml.Page.from_element(element, named)
            if (text := _article(page, counts)) is not None:
                at = done + stream.consumed
                yield Record(text, str(stream.path), number, at, title=page.title or "", namespaces=namespaces)
            # mwxml leaves an empty element per page in the tree: gigabytes for a large wiki
            root.element.clear()
            guarded.since_page = 0
        for _ in root.pointer.etree_events:
            pass  # to the end of the file: nothing may follow, and the checksum of an archive is there
    except (ParseError, MalformedXML, ValueError, TypeError, AttributeError) as error:
        # mwxml turns a missing or odd number, date or name into one of the last three
        if isinstance(error, UnicodeDecodeError):
            raise
        raise DataError(
            f"{stream.path}: the XML is damaged or cut off after page {number}, near byte {stream.consumed:,} of the "
            f"file ({type(error).__name__}: {error}); get the file again"
        ) from error


def _article(page: Any, counts: Counts) -> str | None:
    text = None
    for revision in page:
        main = revision.slots.contents["main"]
        text = main.text if (main.model or "wikitext") == "wikitext" else None
    if page.namespace != _ARTICLES:
        counts.other_namespaces += 1
    elif page.redirect is not None or (text and _REDIRECT.match(text)):
        counts.redirects += 1
    elif not text or text.isspace():
        counts.empty += 1
    else:
        return str(text)
    return None


class _Guarded:
    """Input of the XML parser that refuses a page that would fill the memory."""

    def __init__(self, stream: TextStream, limit: int) -> None:
        self._stream, self._limit = stream, limit
        self.since_page = 0
        """Characters read since the last complete page."""

    def read(self, size: int = -1) -> str:
        text = self._stream.text.read(size)
        self.since_page += len(text)
        if self.since_page > self._limit + _MARKUP + size:
            raise DataError(
                f"{self._stream.path}: a page that ends after byte {self._stream.consumed:,} of the file is longer "
                f"than max_document={self._limit:,} characters; raise it (the memory grows with it)"
            )
        return text
