"""HTML elements; texts and attributes are escaped, elements are not."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


class Html(str):
    """Text that is HTML already, and is not escaped."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Return an element; a trailing ``_`` of an attribute's name is dropped, a child that is None is left out."""
    attribute_text = "".join(f' {key.rstrip("_")}="{html.escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{attribute_text}>{joined(children)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    """Concatenate texts and elements."""
    escaped = (part if isinstance(part, Html) else html.escape(str(part)) for part in parts if part is not None)
    return Html("".join(escaped))


def table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table whose first column names the rows; it scrolls if it is wider than the page."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in heads))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", "-" if cell is None else cell) for cell in row[1:]))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide")


def data(name: str, value: Any) -> Html:
    """Return a script element with ``value`` as JSON, in which ``<``, ``>`` and ``&`` are escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{name}">{text}</script>')


def script(code: str) -> Html:
    """Return a script element.

    Raises:
        ValueError: the code contains the end of the element.
    """
    if "</script" in code.lower() or "<!--" in code:
        raise ValueError("a script that ends its own element")
    return Html(f"<script>{code}</script>")


def csp_source(code: str) -> str:
    """Return the source expression by which a Content-Security-Policy allows this script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
