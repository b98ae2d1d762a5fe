"""Sphinx settings; ``build.py`` runs Sphinx on a copy of the pages."""

from __future__ import annotations

from typing import Any

project = "recipe"
html_title = "recipe"
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]
"""Headings of the changelog skip a level."""

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "native"


def setup(app: Any) -> None:
    """Exclude descriptions of fields from napoleon, which treats text before a colon as a type."""
    whole: dict[str, list[str]] = {}

    def keep(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
        whole[name] = list(lines)

    def restore(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
        if what in ("attribute", "data"):
            lines[:] = whole[name]

    app.connect("autodoc-process-docstring", keep, priority=400)
    app.connect("autodoc-process-docstring", restore, priority=600)
