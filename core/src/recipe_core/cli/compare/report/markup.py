"""Elements of HTML, whose texts and attributes are escaped unless they are elements themselves."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element; a trailing ``_`` of an attribute's name is dropped, None is a child that is left out."""
    words = "".join(f' {key.rstrip("_")}="{html.escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{words}>{joined(children)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    """Texts and elements after each other."""
    found = (part if isinstance(part, Html) else html.escape(str(part)) for part in parts if part is not None)
    return Html("".join(found))


def table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table whose first column names the rows. It scrolls by itself where it is wider than the page."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in heads))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", "-" if cell is None else cell) for cell in row[1:]))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide")


def data(name: str, value: Any) -> Html:
    """``value`` as JSON that a script of the page reads; nothing in it ends the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # in ASCII
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{name}">{text}</script>')


def script(code: str) -> Html:
    """Code of ours or of a library, which must not contain the end of the element.

    Raises:
        ValueError: it does.
    """
    if "</script" in code.lower() or "<!--" in code:
        raise ValueError("a script that ends its own element")
    return Html(f"<script>{code}</script>")


def allowed(code: str) -> str:
    """The word of a Content-Security-Policy that lets this script run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
