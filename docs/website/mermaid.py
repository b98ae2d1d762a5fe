"""Mermaid diagrams as SVG, so that the site needs no external script.

``python docs/website/mermaid.py MERMAID.JS`` draws new and changed diagrams with Chromium; mermaid.min.js is in the npm
package ``mermaid``.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1]
PICTURES = DOCS / "pictures"
PAGE = """\
<!doctype html><meta charset="utf-8"><pre class="mermaid">{text}</pre><script>{script}</script><script>
mermaid.initialize({{
  startOnLoad: false, htmlLabels: false, theme: "neutral", themeVariables: {{fontSize: "28px"}},
  flowchart: {{
    htmlLabels: false, nodeSpacing: 16, rankSpacing: 28, padding: 8, subGraphTitleMargin: {{top: 10, bottom: 30}},
  }},
}});
mermaid.run().then(() => document.title = "drawn");
</script>"""


def place(text: str) -> Path:
    """Return the path of a block's picture, named by a hash of the text."""
    return PICTURES / f"mermaid-{hashlib.sha256(text.strip().encode()).hexdigest()[:12]}.svg"


def picture_of(text: str) -> Path:
    """Return the picture of a block.

    Raises:
        SystemExit: the block has changed since it was drawn.
    """
    if not place(text).is_file():
        sys.exit(f"{place(text)}: is missing; the picture was changed, so run docs/website/mermaid.py")
    return place(text)


def draw(text: str, script: Path) -> str:
    """Draw the SVG of a block with Chromium."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        page.write_text(PAGE.format(text=escaped, script=script.read_text(encoding="utf-8")), encoding="utf-8")
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
        done = subprocess.run(
            ["chromium", *words, page.as_uri()], capture_output=True, text=True, check=True, timeout=120
        )
    (svg,) = re.findall(r"<svg.*?</svg>", done.stdout.partition("<script>")[0], re.DOTALL)
    return str(svg).replace("<br>", "<br/>")


def main(words: list[str]) -> int:
    """Draw missing pictures, and remove those that no page shows."""
    sys.path.insert(0, str(DOCS))
    from check import PAGES, fences

    blocks = {text for page in PAGES for _, info, text in fences(page) if info == "mermaid"}
    PICTURES.mkdir(exist_ok=True)
    for text in sorted(blocks):
        if not place(text).is_file():
            place(text).write_text(draw(text, Path(words[0])) + "\n", encoding="utf-8")
    for path in PICTURES.glob("mermaid-*.svg"):
        if path not in {place(text) for text in blocks}:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
