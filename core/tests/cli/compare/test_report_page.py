"""`recipe report`: the page holds the exact values of the run folders, and needs no other files."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.compare.report import page
from recipe_core.cli.compare.report.charts import thinned

Typed = Callable[..., tuple[int, str, str]]
JOB = "recipe: toy\nmodel: {use: toy_model, hidden: 8}\ntrain: {lr: 0.1, steps: 3, golden: null}\n"
ROWS = [
    {"step": 0, "val_loss": 9.0},
    {"step": 1, "consumed_samples": 8, "loss": 0.1 + 0.2, "lr": 1e-300, "seconds": 0.5, "tokens_per_second": 100.0},
    {"step": 2, "consumed_samples": 16, "loss": 5e30, "lr": 1 / 3, "seconds": 0.25, "tokens_per_second": 300.0},
    {"step": 3, "consumed_samples": 24, "loss": -0.0, "val_loss": 2**53, "lr": 7, "peak_memory": 505159680},
]


class Page(HTMLParser):
    """A page, parsed by the standard library."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.cells: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "input", "img", "path"):
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside == "script" else self.texts).append(data)
        if any(tag in ("td", "th") for tag in self.open):
            self.cells[-1][-1] += data

    @property
    def data(self) -> dict[str, Any]:
        """The data that the page's script draws."""
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found

    def chart(self, key: str) -> dict[str, Any]:
        (found,) = [chart for chart in self.data["charts"] if chart["key"] == key]
        return dict(found)

    def rows(self, head: str) -> list[list[str]]:
        """The rows of all tables with the heading ``head`` of the first column, without headings."""
        lengths = {len(row) for row in self.cells if row[0] == head}
        return [row for row in self.cells if row[0] != head and len(row) in lengths]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for plotly, of a few characters."""
    monkeypatch.setattr(page, "plotly", lambda path: "var Plotly = {};")


def make(name: str, rows: list[dict[str, Any]], job: str = JOB, **results: Any) -> Path:
    """Make a run folder."""
    folder = Path(name)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.yaml").write_text(job)
    if results:
        (folder / "results.json").write_text(json.dumps(results))
    return folder


def read(path: str = "report.html") -> Page:
    """Parse the page; every opened element must be closed."""
    found = Page(Path(path).read_text(encoding="utf-8"))
    found.close()
    assert not found.open
    return found


@pytest.mark.usefixtures("small")
def test_the_numbers_are_those_of_metrics_jsonl(typed: Typed) -> None:
    make("a", ROWS)
    make("b", [{**row, "loss": row.get("loss", 0) / 3} for row in ROWS[1:]])
    code, out, err = typed("report", "a", "b", "--html")
    assert (code, err) == (0, "")
    assert out.startswith("report.html: 2 runs, ")
    found = read()
    assert [run["name"] for run in found.data["runs"]] == ["a", "b"]
    compared = 0
    for chart in found.data["charts"]:
        for curve in chart["curves"]:
            lines = Path(found.data["runs"][curve["run"]]["name"], "metrics.jsonl").read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            for key, points in ((chart["key"], curve), (f"val_{chart['key']}", curve["validation"])):
                known = {row["step"]: row[key] for row in rows if key in row}
                assert dict(zip(points.get("steps", []), points.get("values", []), strict=True)) == known
                compared += len(known)
    positions = ("step", "consumed_samples")
    assert compared == sum(key not in positions for row in (*ROWS, *ROWS[1:]) for key in row)


@pytest.mark.usefixtures("small")
def test_what_is_said_of_a_run(typed: Typed) -> None:
    make(
        "a", ROWS, step=3, steps=3, stopped=None, exit_code=0, world_size=2, device="cpu", torch="2.9", notes={"n": "m"}
    )
    make("b", ROWS[:2], step=1, steps=3, stopped="SIGTERM", exit_code=75)
    assert typed("report", "a", "b", "--out", "sub/x.html")[0] == 0
    found = read("sub/x.html")
    heads = ["run", "state", "step", "loss", "validation loss", "tokens/s", "s per step", "training", "memory"]
    assert found.cells[0] == [*heads, "machine"]
    assert found.rows("run") == [
        ["a", "finished", "3 of 3", "0.3000 → -0.0000", "9.0000 → 9007199254740992.0000", "200.0", "0.375", "1s"]
        + ["0.47 GiB", "2 processes on cpu, torch 2.9"],
        ["b", "stopped exit code 75", "1 of 3", "0.3000 → 0.3000", "9.0000 → 9.0000", "100.0", "0.5", "0s"]
        + ["-", "-"],
    ]
    assert {"a: n: m", "b: stopped: SIGTERM"} <= set(found.texts)


@pytest.mark.usefixtures("small")
def test_settings_that_differ_stand_first(typed: Typed) -> None:
    make("a", ROWS)
    make("b", ROWS, JOB.replace("hidden: 8", "width: 9"))
    assert typed("report", "a", "b")[0] == 0
    found = read().rows("setting")
    assert found[:2] == [["model.hidden", "8", "-"], ["model.width", "-", "9"]]
    assert found[2:] == [
        ["recipe", "toy", "toy"], ["model.use", "toy_model", "toy_model"], ["model.hidden", "8", "-"],
        ["train.lr", "0.1", "0.1"], ["train.steps", "3", "3"], ["train.golden", "null", "null"],
        ["model.width", "-", "9"],
    ]  # fmt: skip


HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>&amp;\u2028'


@pytest.mark.usefixtures("small")
def test_names_and_texts_are_escaped(typed: Typed) -> None:
    name = HOSTILE.replace("/", "|")
    rows = [{**row, HOSTILE: 1.0} for row in ROWS]
    job = f"{JOB}data: {{files: {json.dumps(HOSTILE)}}}\n{json.dumps(HOSTILE)}: 1\n"
    folder = make(name, rows, job, sample=HOSTILE, notes={HOSTILE: HOSTILE}, device=HOSTILE, step=HOSTILE)
    (folder / "metrics.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes() + b"damaged\n")
    make("b", ROWS, step=3)
    code, _, err = typed("report", name, "b")
    assert (code, err) == (0, f"recipe report: {name}/metrics.jsonl: line 5 is damaged; left out\n")
    found = read()
    assert found.tags.count("script") == 3
    assert "img" not in found.tags
    assert not [key for key, _ in found.attributes if key.startswith("on")]
    assert found.data["runs"][0]["name"] == name
    assert HOSTILE in [chart["key"] for chart in found.data["charts"]]
    for text in (name, HOSTILE, f"{name}: {HOSTILE}: {HOSTILE}", f"2 runs: {name}, b"):
        assert text in found.texts
    assert "\u2028" not in found.scripts[0]


def test_a_page_needs_nothing_else(typed: Typed) -> None:
    pytest.importorskip("plotly")
    folder = make("a", ROWS, sample="text")
    (folder / "confusion.png").write_bytes(b"\x89PNG picture")
    assert typed("report", "a")[0] == 0
    found = read()
    sources = [value for key, value in found.attributes if key in ("src", "href", "srcset", "data", "action", "poster")]
    assert sources == [f"data:image/png;base64,{base64.b64encode(b'%sPNG picture' % bytes([0x89])).decode()}"]
    assert not {"link", "iframe", "object", "embed", "base"} & set(found.tags)
    style = next(text for text in found.texts if ":root" in text)
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [value for key, value in found.attributes if key == "content" and value and "default-src" in value]
    rules = dict(rule.split(None, 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert (rules["img-src"], rules["style-src"]) == ("data: blob:", "'unsafe-inline'")
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in found.scripts[1:]]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert len(hashes) == 2


@pytest.mark.usefixtures("small")
def test_what_is_not_finite_is_a_gap_with_a_note(typed: Typed) -> None:
    folder = make("a", [{"step": step, "loss": 1.0 if step < 3 else None, "words": "x"} for step in range(1, 5)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": NaN}\n{"step": 6, "loss": 1%s}\n{"step": 7, "other": Infinity}\n' % ("0" * 400))
    code, _, err = typed("report", "a")
    assert (code, err) == (0, "recipe report: a/metrics.jsonl: lines 5, 6 are damaged; left out\n")
    chart = read().chart("loss")
    assert chart["curves"][0]["values"] == [1.0, 1.0, None, None]
    assert chart["notes"] == ["a: 2 of 4 values of loss are not finite, first at step 3"]
    assert read().chart("other")["curves"][0]["values"] == [None]
    assert read().rows("run")[0][3] == "1.0000 → not finite"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", [None, "", "\n", '{"step": 1', "damaged\n"])
def test_a_run_without_metrics(typed: Typed, text: str | None) -> None:
    folder = make("a", [])
    (folder / "metrics.jsonl").unlink() if text is None else (folder / "metrics.jsonl").write_text(text)
    code, out, _ = typed("report", "a")
    assert (code, out[:20]) == (0, "report.html: 1 run, ")
    assert {"No step was logged.", "a: new: no process has trained here yet"} <= set(read().texts)
    assert read().rows("run") == [["a", "new", "0 of 3", *["-"] * 4]]


@pytest.mark.usefixtures("small")
def test_an_array_is_all_its_runs(typed: Typed) -> None:
    for seed in (1, 2, 10):
        make(f"many/seed-{seed}", ROWS)
    assert typed("report", "many")[0] == 0
    assert [run["name"] for run in read().data["runs"]] == ["seed-1", "seed-2", "seed-10"]


@pytest.mark.usefixtures("small")
def test_a_folder_that_is_no_run(typed: Typed) -> None:
    make("a", ROWS)
    Path("other").mkdir()
    for name, what in (("other", "there is no job.yaml in it"), ("nowhere", "there is no such folder")):
        assert typed("report", "a", name) == (2, "", f"recipe report: {name}: expected a run folder, and {what}\n")
    (Path("a") / "results.json").write_text("{")
    code, _, err = typed("report", "a")
    assert code == 2
    assert err.startswith("recipe report: a/results.json: cannot be read (")
    assert not list(Path().glob("*report*"))


@pytest.mark.usefixtures("small")
def test_only_a_page_of_its_own_is_replaced(typed: Typed) -> None:
    make("a", ROWS)
    Path("report.html").write_text("<p>mine")
    message = "recipe report: report.html exists and is no page of `recipe report`; name another with --out\n"
    assert typed("report", "a") == (2, "", message)
    assert Path("report.html").read_text() == "<p>mine"
    assert typed("report", "a", "--out", "x.html")[0] == typed("report", "a", "--out", "x.html")[0] == 0
    assert sorted(map(str, Path().iterdir())) == ["a", "report.html", "x.html"]


def test_without_plotly(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    make("a", ROWS)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    message = "report.html: a page needs plotly, which is not installed; pip install 'recipe-core[report]'"
    assert typed("report", "a") == (2, "", f"recipe report: {message}\n")
    assert [*Path().iterdir()] == [Path("a")]


@pytest.mark.usefixtures("typed")
def test_it_needs_neither_torch_nor_numpy() -> None:
    make("a", ROWS)
    code = (
        "import sys\n"
        "from recipe_core.cli.compare.report import page\n"
        "from recipe_core.cli.main import main\n"
        "page.plotly = lambda path: 'var Plotly;'\n"
        "code = main(['report', 'a'])\n"
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'numpy', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_long_curves_keep_their_extremes() -> None:
    values = [math.sin(index) for index in range(100_000)]
    values[777], values[50_001], values[99_998] = 9.0, -9.0, math.nan
    chosen = list(thinned(values, 1000))
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= 1000 + 1
    assert {0, 777, 50_001, 99_998, 99_999} <= set(chosen)
    assert list(thinned(values[:1000], 1000)) == list(range(1000))


@pytest.mark.usefixtures("small")
def test_long_runs_are_smoothed_over_all_points_and_say_that_they_are_thinned(typed: Typed) -> None:
    make("a", [{"step": step, "loss": 2.0 + (step % 2)} for step in range(1, 10_001)])
    assert typed("report", "a")[0] == 0
    chart = read().chart("loss")
    (curve,) = chart["curves"]
    assert len(curve["steps"]) == len(curve["values"]) == len(curve["smooth"]) <= 4000
    assert all(value == 2.0 + step % 2 for step, value in zip(curve["steps"], curve["values"], strict=True))
    assert max(abs(mean - 2.5) for mean in curve["smooth"][len(curve["smooth"]) // 10 :]) < 0.01
    assert chart["notes"] == ["a: 10,000 values of loss, of which the lowest and highest of each stretch are drawn"]
