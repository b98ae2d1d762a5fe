"""The picture of `recipe eval --png`: every value of every checkpoint, and how much it is a mean over."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Typed = Callable[..., tuple[int, str, str]]


def row(checkpoint: str, step: int | None, loss: float, data: str = "validation", **rest: Any) -> dict[str, Any]:
    """A row of the table."""
    return {"checkpoint": checkpoint, "step": step, "data": data, "tokens": 3000, "loss": loss, **rest}


def drawn(rows: list[dict[str, Any]], names: list[str]) -> Any:
    """matplotlib's figure of the rows."""
    from recipe_core.cli.checkpoint.plot import fill, values_of

    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    assert values_of(rows) == names
    fill(figure, rows, names, (1, len(names)))
    return figure


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_checkpoints_of_a_run_are_curves_over_their_steps() -> None:
    rows = [row(f"a/checkpoints/step-{n}", n, 9.0 / n, accuracy=n / 100, bytes=7000) for n in (12, 8, 4)]
    rows += [row("b/checkpoints/step-4", 4, 2.0, bytes=7000)]
    figure = drawn(rows, ["loss", "accuracy"])
    losses, accuracies = figure.axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in losses.lines] == [
        ([4, 8, 12], [9 / 4, 9 / 8, 9 / 12]),
        ([4], [2.0]),
    ]
    assert list(accuracies.lines[0].get_ydata()) == [4.0, 8.0, 12.0]
    assert (losses.get_title(loc="left"), accuracies.get_title(loc="left")) == ("loss", "accuracy (%)")
    counts = "validation (3,000 tokens, 7,000 bytes)"
    assert legend(figure) == [f"a: {counts}", f"b: {counts}"]


def test_other_checkpoints_have_a_row_each() -> None:
    rows = [row("x/$a$", 8, 4.0), row("model.pt", None, float("nan")), row("x/$a$", 8, 5.0, "some/my.txt")]
    figure = drawn(rows, ["loss"])
    (axes,) = figure.axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [([4.0], [0]), ([5.0], [0])]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["x/$a$", "model.pt"]
    assert axes.get_ylim() == (1.5, -0.5)
    assert legend(figure) == ["validation (3,000 tokens)", "my.txt (3,000 tokens)"]
    figure.savefig(io.BytesIO(), format="png")  # names are no formulas


def test_the_command_draws_what_it_prints(typed: Typed) -> None:
    pytest.importorskip("matplotlib")
    assert typed("run", "toy", "--out", "run", "train.save_every=4", "train.keep=3")[0] == 0
    steps = ["run/checkpoints/step-4", "run/checkpoints/step-8"]
    code, out, err = typed("eval", *steps, "--limit", "4", "--png", "x.png", "--json", "x.json")
    assert (code, err) == (0, "")
    assert out.endswith("\npicture: x.png\n")
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads(Path("x.json").read_text())["results"]
    assert [(one["step"], one["samples"]) for one in rows] == [(4, 4), (8, 4)]
    assert typed("eval", *steps, "--limit", "4", "--png", "x.png")[0] == 0  # its own picture


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.png", "mine.png exists and is no picture of `recipe eval`; name another with --png"),
        ("x.txt", "x.txt: expected a name that ends in .png, or in one of ."),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_first(typed: Typed, name: str, message: str) -> None:
    pytest.importorskip("matplotlib")
    Path("mine.png").write_bytes(b"mine")
    Path("empty").mkdir()
    code, out, err = typed("eval", "empty", "--png", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"recipe eval: {message}")
    assert Path("mine.png").read_bytes() == b"mine"
