"""The log line: the fields of the published scripts, and more."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from recipe_bert_dp.console import line

PUBLISHED = re.compile(
    r"LOG (?P<time>.*) - \((?P<epoch>\d+), (?P<step>\d+)\) step_loss : (?P<loss>\S+) "
    r"learning_rate : (?P<rate>\S+) throughput : (?P<throughput>\S+)"
)
ROW = {
    "step": 57, "consumed_samples": 1700, "loss": 9.12345, "mlm_loss": 8.4, "nsp_loss": 0.72345, "mlm_accuracy": 0.061,
    "nsp_accuracy": 0.52, "lr": 1.25e-5, "grad_norm": 1.5, "seconds": 0.5, "samples_per_second": 400.0,
    "sequences_per_second": 812.4, "real_tokens_per_second": 51234.4, "mfu": 0.412,
}  # fmt: skip


def job(samples: int | None = 800) -> Any:
    return SimpleNamespace(facts=SimpleNamespace(data=SimpleNamespace(train_samples=samples)))


def test_it_begins_as_the_published_log() -> None:
    match = PUBLISHED.match(line(ROW, job()))
    assert match is not None
    assert match.groupdict() | {"time": ""} == {
        "time": "", "epoch": "2", "step": "57", "loss": "9.1235", "rate": "1.25e-05", "throughput": "812.40"
    }  # fmt: skip


def test_further_figures_follow() -> None:
    assert line(ROW, job()).split(" | ")[1:] == [
        "mlm loss 8.4000, accuracy 0.0610", "nsp loss 0.7235, accuracy 0.5200", "real tokens/s 51,234", "MFU 41.2%"
    ]  # fmt: skip


@pytest.mark.parametrize("samples", [None, 0])
def test_what_is_not_known_is_left_out(samples: int | None) -> None:
    row = {key: value for key, value in ROW.items() if key not in ("mfu", "real_tokens_per_second")}
    text = line(row, job(samples))
    assert " - (0, 57) step_loss" in text
    assert text.endswith("nsp loss 0.7235, accuracy 0.5200")


def test_a_row_of_an_evaluation_alone() -> None:
    row = {"step": 0, "consumed_samples": 0, "val_loss": 10.4, "val_mlm_loss": 9.7, "val_nsp_loss": 0.7}
    text = line(row, job())
    assert text.split(" | ")[1:] == [
        "validation loss 10.4000", "validation mlm loss 9.7000", "validation nsp loss 0.7000"
    ]  # fmt: skip
    assert text.partition(" | ")[0].endswith(" - (0, 0)")
