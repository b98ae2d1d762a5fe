"""The page of `recipe report` in a real browser, if installed: it draws the values of metrics.jsonl."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HIDE = """<pre id="held"></pre><script>
setTimeout(() => { document.getElementById("more").open = true; }, 1000);
setTimeout(() => document.querySelector("input[data-run='0']").click(), 2000);
setTimeout(() => document.getElementById("log").click(), 2500);
setTimeout(() => {
  const drawn = [...document.querySelectorAll(".plot.js-plotly-plot")];
  const seen = (one) => [one.data.map((trace) => trace.visible), one.layout.yaxis.type];
  document.getElementById("held").textContent = JSON.stringify(drawn.map(seen));
}, 4000);
</script></body>"""
"""A script that opens the other charts, hides the first run, and asks for a logarithmic scale."""
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=15000 --window-size=1280,1000 --dump-dom"
)
READ = """<pre id="held"></pre><script>
setTimeout(() => {
  const place = document.querySelector(".plot .nsewdrag"), box = place.getBoundingClientRect();
  const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
  place.dispatchEvent(new MouseEvent("mousemove", at));
  const drawn = [...document.querySelectorAll(".plot.js-plotly-plot")];
  document.getElementById("held").textContent = JSON.stringify(drawn.map((one) => one.data));
}, 1500);
</script></body>"""
"""A script that points at the middle of the first chart, and writes plotly's data."""
NAME = "<img src=x onerror=alert(1)> <b>%{y}"


@pytest.fixture
def dumped(tmp_path: Path) -> Callable[[str], str]:
    """Open a page; return its DOM after the scripts have run."""

    def dump(page: str) -> str:
        assert BROWSER is not None
        done = subprocess.run(
            [BROWSER, *FLAGS.split(), f"--user-data-dir={tmp_path / 'browser'}", Path(page).resolve().as_uri()],
            capture_output=True, check=True, timeout=120,
        )  # fmt: skip
        return done.stdout.decode()

    return dump


def run_script(dumped: Callable[[str], str], script: str) -> tuple[str, Any]:
    """Run ``script`` in the page without its policy, which forbids it; return the DOM, and what the script wrote."""
    text = Path("report.html").read_text(encoding="utf-8")
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text, count=1)
    Path("read.html").write_text(free.replace("</body>", script), encoding="utf-8")
    found = dumped("read.html")
    match = re.search(r'<pre id="held">(.*?)</pre>', found, re.DOTALL)
    assert match is not None
    return found, json.loads(html.unescape(match[1]))


def test_what_the_browser_draws(typed: Callable[..., tuple[int, str, str]], dumped: Callable[[str], str]) -> None:
    pytest.importorskip("plotly")
    rows: list[dict[str, Any]] = [{"step": step, "loss": 9.0 / step, "lr": step / 3e7} for step in range(1, 102, 5)]
    rows[3]["loss"] = None
    rows[4]["val_loss"] = 0.1 + 0.2
    for name in ("a", NAME):
        Path(name).mkdir()
        Path(name, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(name, "job.yaml").write_text("recipe: toy\n")
    assert typed("report", "a", NAME)[0] == 0
    whole = dumped("report.html")  # with its policy, which must let the scripts run
    assert whole.count('class="plot js-plotly-plot"') == 2
    found, (losses, rates) = run_script(dumped, READ)
    steps = [row["step"] for row in rows]
    for number, name in enumerate(("a", NAME)):
        line, points = losses[2 * number : 2 * number + 2]
        assert (html.unescape(line["name"]), line["x"], line["y"]) == (name, steps, [row["loss"] for row in rows])
        assert (points["x"], points["y"]) == ([steps[4]], [0.1 + 0.2])
        assert (rates[number]["x"], rates[number]["y"]) == (steps, [row["lr"] for row in rows])
    label = re.findall(r'<text class="legendtext"[^>]*data-unformatted="(.*?)"', found)
    assert [html.unescape(html.unescape(text)) for text in label] == [f"{name} : 0.17647" for name in ("a", NAME)]


def test_a_run_is_hidden_in_all_charts(
    typed: Callable[..., tuple[int, str, str]], dumped: Callable[[str], str]
) -> None:
    pytest.importorskip("plotly")
    for name in ("a", "b"):
        Path(name).mkdir()
        rows = [{"step": step, "loss": 9.0 / step, "seconds": 0.1} for step in range(1, 5)]
        Path(name, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(name, "job.yaml").write_text("recipe: toy\n")
    assert typed("report", "a", "b")[0] == 0
    assert run_script(dumped, HIDE)[1] == [[[False, True], "log"], [[False, True], "log"]]
