"""`recipe compare`: curves, speeds and settings of runs side by side."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.compare.compare import compare
from recipe_core.cli.main import main
from recipe_core.hooks.train import Train
from recipe_core.train.guards.golden import load_golden
from recipe_core.train.metrics.curves import read_curve

Made = Callable[..., Path]
Typed = Callable[..., tuple[int, str, str]]
JOB = "recipe: toy\nmodel: {use: toy_model, hidden: 8}\ntrain: {lr: 0.1, seed: 1, betas: [0.9, 0.95]}\n"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Create a run folder with these losses by step, in the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, losses: dict[int, float | None], job: str = JOB, **rest: Any) -> Path:
        folder = Path(name)
        folder.mkdir(parents=True)
        rows = [{"step": 0, "val_loss": 9.0}]
        rows += [{"step": s, "loss": loss, "val_loss": 8.0 - s, "lr": s / 10, **rest} for s, loss in losses.items()]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "job.yaml").write_text(job)
        return folder

    return make


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run `recipe compare ...`; return exit code, stdout and stderr."""

    def typed(*arguments: str) -> tuple[int, str, str]:
        code = main(["compare", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return typed


def table(text: str, title: str) -> list[list[str]]:
    """The rows of one block, split at spaces."""
    block = next(block for block in text.split("\n\n") if block.startswith(f"{title}\n"))
    return [line.split() for line in block.splitlines()[1:]]


def test_what_is_shown(make: Made, typed: Typed) -> None:
    make("runs/a", {1: 4.0, 2: 3.0, 3: 2.0}, sequences_per_second=10.0, tokens_per_second=1000.0)
    make("runs/b", {2: 3.3, 3: 2.1, 4: 1.5}, sequences_per_second=25.0, tokens_per_second=2500.0, mfu=0.4)
    (Path("runs/b") / "job.yaml").write_text(JOB.replace("0.1", "0.2"))
    (Path("runs/b") / "results.json").write_text('{"device": "cuda", "loss": 1.5}')
    code, out, err = typed("runs/a", "runs/b", "--no-png")
    assert (code, err) == (0, "")
    assert table(out, "loss")[1:] == [
        ["a", "3", "4.0000", "2.0000", "9.0000", "to", "5.0000"],
        ["b", "3", "3.3000", "1.5000", "9.0000", "to", "4.0000"],
    ]
    assert table(out, "Largest departure from a")[1:] == [["b", "2", "2", "3.0000", "3.3000", "+0.3", "0.1"]]
    assert table(out, "Values")[1:] == [["2", "3.0000", "3.3000"], ["3", "2.0000", "2.1000"]]
    assert table(out, "Speed (median)")[1:] == [
        ["a", "10.0", "1,000.0", "-", "1.00"],
        ["b", "25.0", "2,500.0", "40.0%", "2.50"],
    ]
    assert table(out, "Settings that differ")[1:] == [["train.lr", "0.1", "0.2"], ["device", "-", "cuda"]]
    assert not list(Path().glob("*.png"))


@pytest.mark.parametrize(("tolerance", "code"), [("0.1", 0), ("0.05", 1), ("0", 1), ("1e-3", 1)])
def test_beyond_the_tolerance_it_ends_with_1(make: Made, typed: Typed, tolerance: str, code: int) -> None:
    make("a", {1: 4.0, 2: 3.0, 3: 2.0})
    make("b", {1: 4.0, 2: 3.0, 3: 2.0})
    make("c", {1: 4.0, 2: 3.2, 3: 2.0 - 0.15})
    assert typed("a", "b", "c", "--tolerance", tolerance, "--no-png")[0] == code
    assert typed("a", "b", "--tolerance", tolerance, "--no-png")[0] == 0
    found, _, err = typed("a", "b", "c", "--tolerance", tolerance, "--no-png")
    if found:
        assert err == (f"c: loss departs from a's by more than {float(tolerance):g} of it, first at step 2 (3, 3.2)\n")


def test_the_largest_departure_is_relative_to_the_first_run(make: Made) -> None:
    make("a", {1: 10.0, 2: 1.0})
    make("b", {1: 11.0, 2: 1.2})
    (departure,) = compare([read_curve(Path("a")), read_curve(Path("b"))]).departures
    assert (departure.largest.step, departure.largest.absolute) == (2, pytest.approx(0.2))
    assert departure.largest.relative == pytest.approx(0.2)


def test_what_is_no_number_is_beyond_every_tolerance(make: Made, typed: Typed) -> None:
    make("a", {1: 4.0, 2: 3.0})
    make("b", {1: 4.0, 2: None})
    code, out, _ = typed("a", "b", "--tolerance", "1e9", "--no-png")
    assert code == 1
    assert "not finite" in out
    code, out, _ = typed("a", "b", "--json")
    assert json.loads(out)["departures"][0]["largest"] == {
        "step": 2, "first": 3.0, "other": None, "absolute": None, "relative": None
    }  # fmt: skip
    assert math.isinf(compare([read_curve(Path(p)) for p in "bb"]).departures[0].largest.relative)


def test_json(make: Made, typed: Typed) -> None:
    make("a", {1: 4.0, 2: 3.0}, samples_per_second=5.0)
    make("b", {1: 4.0, 2: 3.3}, samples_per_second=6.0)
    code, out, err = typed("a", "b", "--json", "--tolerance", "0.05")
    found = json.loads(out)
    assert (code, found["metric"], found["tolerance"]) == (1, "loss", 0.05)
    assert found["runs"][0] == {
        "path": "a", "steps": 2, "first_loss": 4.0, "loss": 3.0, "first_val_loss": 9.0, "val_loss": 6.0,
        "speed": {"sequences_per_second": 5.0},
    }  # fmt: skip
    (departure,) = found["departures"]
    assert departure["largest"] == departure["first_beyond"]
    assert (departure["path"], departure["common_steps"], departure["largest"]["step"]) == ("b", 2, 2)
    assert departure["largest"]["relative"] == pytest.approx(0.1)
    assert (found["settings"], list(Path().glob("*.png"))) == ({}, [])
    assert "departs" in err


def test_another_metric(make: Made, typed: Typed) -> None:
    make("a", {1: 4.0, 2: 3.0})
    make("b", {1: 5.0, 2: 4.0})
    assert typed("a", "b", "--metric", "lr", "--tolerance", "0", "--no-png")[0] == 0
    code, _, err = typed("a", "b", "--metric", "val_los", "--no-png")
    assert code == 2
    assert err == (
        "recipe compare: a: no line has 'val_los'; did you mean 'val_loss'? (there are: loss, lr, val_loss)\n"
    )


def test_runs_of_one_name_are_told_apart_by_their_paths(make: Made, typed: Typed) -> None:
    make("old/run", {1: 4.0})
    make("new/run", {1: 4.0})
    _, out, _ = typed("old/run", "new/run/metrics.jsonl", "--no-png")
    assert [row[0] for row in table(out, "loss")[1:]] == ["old/run", "new/run/metrics.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "typo"], "typo: there is no such file or folder; expected a run folder, its metrics.jsonl, or a file"),
        (["a", "empty"], "empty: no metrics.jsonl in it; expected a run folder"),
        (["a", "none"], "none/metrics.jsonl: holds no step"),
        (["a", "other"], "a and other have no step in common: 2 steps from 1 to 2, and 1 steps from 7 to 7; give both"),
        (["a", "broken"], "broken/job.yaml: cannot be read"),
        (["a", "--png", "x.tiff2"], "x.tiff2: expected a name that ends in .png, or in one of"),
    ],
)
def test_mistakes_end_with_2_and_one_message(make: Made, typed: Typed, arguments: list[str], message: str) -> None:
    if "--png" in arguments:
        pytest.importorskip("matplotlib")
    make("a", {1: 4.0, 2: 3.0})
    make("other", {7: 4.0})
    make("broken", {1: 4.0}, job="{")
    Path("empty").mkdir()
    Path("none").mkdir()
    (Path("none") / "metrics.jsonl").write_text("")
    code, _, err = typed(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"recipe compare: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'RUN...'"),
        (["a", "--tolerance", "0.1"], "--tolerance needs a second run"),
        (["a", "a", "--tolerance", "-1"], "-1.0 is not in the range x>=0"),
    ],
)
def test_mistakes_in_the_line(make: Made, typed: Typed, arguments: list[str], message: str) -> None:
    make("a", {1: 4.0})
    code, _, err = typed(*arguments)
    assert code == 2
    assert message in err


def test_a_golden_file_is_written_and_read_back(make: Made, typed: Typed) -> None:
    losses = {1: 4.0, 2: 1 / 3}
    make("a", losses)
    code, out, _ = typed("a", "--no-png", "--write-golden", "golden/a.jsonl")
    assert code == 0
    assert out.endswith("golden/a.jsonl: 2 losses of a, for train.golden\n")
    golden = load_golden(Train(golden="golden/a.jsonl"))
    assert golden is not None
    assert golden.losses == losses
    assert typed("golden/a.jsonl", "a", "--tolerance", "0", "--no-png")[0] == 0
    make("nan", {1: 4.0, 2: None})
    code, _, err = typed("nan", "--no-png", "--write-golden", "golden/nan.jsonl")
    assert (code, list(Path("golden").iterdir())) == (2, [Path("golden/a.jsonl")])
    assert "nan: the loss of step 2 is not finite" in err
    Path("other.jsonl").write_text('{"step": 1, "val_loss": 3.0}\n')
    code, _, err = typed("other.jsonl", "--metric", "val_loss", "--no-png", "--write-golden", "golden/other.jsonl")
    assert (code, list(Path("golden").iterdir())) == (2, [Path("golden/a.jsonl")])
    assert "other.jsonl: no line has 'loss'" in err


@pytest.mark.parametrize("arguments", [(), ("--png", "deep/curves.png"), ("--png", "curves.svg")])
def test_the_curves_are_drawn(make: Made, typed: Typed, arguments: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib")
    make("a", {1: 4.0, 2: 3.0})
    make("b", {1: 4.0, 2: 3.5})
    path = Path(arguments[1] if arguments else "compare.png")
    code, out, _ = typed("a", "b", *arguments)
    assert (code, out.splitlines()[-1]) == (0, f"curves: {path}")
    assert path.read_bytes()[:5] == (b"<?xml" if path.suffix == ".svg" else b"\x89PNG\r")
    assert list(path.parent.glob(".*.part")) == []


def test_without_matplotlib_the_tables_are_shown_all_the_same(
    make: Made, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("a", {1: 4.0})
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("recipe_core.cli.compare.picture.available", lambda: False)
    code, out, err = typed("a")
    assert (code, table(out, "Values")[1:]) == (0, [["1", "4.0000"]])
    assert err == "compare.png was not drawn: pip install 'recipe-core[plots]' brings matplotlib\n"
    code, _, err = typed("a", "--png", "x.png")
    assert code == 2
    assert err == (
        "recipe compare: x.png: a picture needs matplotlib, which is not installed; pip install 'recipe-core[plots]'\n"
    )


def test_comparing_loads_neither_torch_nor_numpy(make: Made) -> None:
    make("a", {1: 4.0})
    code = (
        "import sys; from recipe_core.cli.main import main; code = main(['compare', 'a', 'a', '--no-png']); "
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'numpy', 'matplotlib')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_of_the_user_is_not_replaced_by_a_golden_curve(make: Made, typed: Typed) -> None:
    make("run", {1: 2.0, 2: 1.0})
    golden, metrics = Path("golden.jsonl"), Path("run/metrics.jsonl")
    golden.write_text("mine")
    before = metrics.read_bytes()
    for path in (golden, metrics):  # the run's own rows have more than a step and a loss
        code, _, err = typed("run", "--no-png", "--write-golden", str(path))
        assert (code, err) == (
            2, f"recipe compare: {path} exists and is no file for train.golden; name another, or remove it yourself\n"
        )  # fmt: skip
    assert (golden.read_text(), metrics.read_bytes()) == ("mine", before)
    golden.unlink()
    for _ in range(2):  # its own file may be replaced
        assert typed("run", "--no-png", "--write-golden", "golden.jsonl")[0] == 0


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_of_the_user_is_not_replaced(make: Made, typed: Typed, ending: str) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    make("run", {1: 2.0, 2: 1.0})
    users_picture, own_picture = Path(f"users.{ending}"), Path(f"own.{ending}")
    figure.Figure().savefig(users_picture)
    before = users_picture.read_bytes()
    code, _, err = typed("run", "--png", str(users_picture))
    assert code == 2
    assert f"{users_picture} exists and is no picture of `recipe compare`" in err
    assert users_picture.read_bytes() == before
    for _ in range(2):  # its own file may be replaced
        assert typed("run", "--png", str(own_picture))[0] == 0


def test_without_a_name_no_picture_is_drawn_over_one_of_the_user(make: Made, typed: Typed) -> None:
    pytest.importorskip("matplotlib")
    make("run", {1: 2.0, 2: 1.0})
    Path("compare.png").write_text("mine")
    code, _, err = typed("run")
    assert (code, err) == (0, "compare.png was not drawn: another file has this name; say --png FILE\n")
    assert Path("compare.png").read_text() == "mine"
