"""A row of metrics as a line of the console: at most 80 columns, and formats of a recipe by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from recipe_core import Job
from recipe_core.errors import ConfigError
from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.train.metrics.line import WIDTH, Compact, duration, log_line

ROW = {
    "step": 120, "consumed_samples": 480, "loss": 6.84213, "lr": 5.91e-4, "grad_norm": 0.8451, "seconds": 0.2,
    "samples_per_second": 20.0, "sequences_per_second": 20.0, "tokens_per_second": 2560.0, "peak_memory": 1.234e9,
}  # fmt: skip


def line(steps: int = 1300, end: int | None = None, **row: float) -> str:
    return Compact(steps, end or steps, batch=4)({**ROW, **row})


def test_what_a_step_says() -> None:
    assert line() == " 120/1300  loss 6.8421  lr 5.9e-04  norm 0.845  2.56k tok/s  3m56s left  1.2 GB"


def test_the_time_left_is_that_of_this_invocation() -> None:
    assert "  16s left" in line(end=200)
    assert "left" not in line(end=120)
    assert "left" not in line(samples_per_second=0.0)


def test_slow_steps_do_not_move_the_time_left() -> None:
    compact = Compact(1300, 1300, batch=4)
    taken = [12.0, 0.2, 0.2, 0.2, 9.0, 0.2, 0.2]  # the first compiles, the fifth waits for a disk
    left = [compact({**ROW, "step": 300, "seconds": seconds}).split("  ")[-2] for seconds in taken]
    assert left[0] == "3h20m left"
    assert left[2:] == ["3m20s left"] * 5


def test_tokens_without_padding_are_the_speed_where_they_are_counted() -> None:
    assert "  1.50M tok/s  " in line(real_tokens_per_second=1.5e6)
    row = {key: value for key, value in ROW.items() if key != "tokens_per_second"}
    assert "  20.0 samples/s  " in Compact(1300, 1300, 4)(row)


def test_what_is_too_long_for_80_columns_is_left_out_from_the_end() -> None:
    text = line(step=499_999, steps=500_000, loss=1234.5, grad_norm=123456.0)
    assert text == "499999/500000  loss 1234.5000  lr 5.9e-04  norm 1.23e+05  2.56k tok/s  0s left"
    assert len(text) == 78 < WIDTH < len(f"{text}  1.2 GB")


def test_an_evaluation_is_a_line_below_that_wraps() -> None:
    found = {
        "val_mlm_accuracy": 0.061,
        "val_loss": 10.4,
        "val_mlm_loss": 9.7,
        "val_nsp_loss": 0.7,
        "val_nsp_accuracy": 0.52,
    }
    assert line(**found).splitlines()[1:] == [
        " 120/1300  validation loss 10.4000  mlm accuracy 0.0610  mlm loss 9.7000",
        "           nsp loss 0.7000  nsp accuracy 0.5200",
    ]
    assert Compact(9, 9, 1)({"step": 0, "val_loss": 2.0}) == "0/9  validation loss 2.0000"
    assert Compact(9, 9, 1)({"step": 0, "consumed_samples": 0}) == "0/9"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0s"), (59.6, "1m00s"), (250, "4m10s"), (3600, "1h00m"), (11_100, "3h05m"), (187_200, "2d04h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def other(row: Mapping[str, Any], job: Job) -> str:
    return f"{job.name} at {row['step']}"


def test_formats_of_the_recipe_by_name() -> None:
    registry = toy.registry()
    claim = registry.registrations["recipe"]["toy"]
    named = replace(registry.get("recipe", "toy"), log_formats={"other": f"{__name__}:other"})
    registry.registrations["recipe"]["toy"] = replace(claim, item=named)
    lines = {name: log_line(resolve(registry, "toy", [f"train.log_format={name}"])) for name in ("auto", "other")}
    assert lines["auto"](ROW).startswith("120/")
    assert lines["other"](ROW) == "toy at 120"
    with pytest.raises(
        ConfigError, match=r"^train.log_format: expected auto, compact or other, got 'othr'; did you mean"
    ):
        resolve(registry, "toy", ["train.log_format=othr"])
