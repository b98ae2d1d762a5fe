"""The summary at the end of a run, and output to a closed terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from recipe_core.train.metrics.report import summary
from recipe_core.train.metrics.results import measured

RESULTS: dict[str, Any] = {"step": 10, "steps": 10, "stopped": None, "world_size": 1, "first_loss": 9.0, "loss": 6.0}


def lines(**more: Any) -> list[str]:
    """The lines between the heading and the files."""
    found = summary({**RESULTS, **more}, "toy", "runs/a").splitlines()
    return found[2 : next(i for i, line in enumerate(found) if line.startswith("  files"))]


def test_one_loss_and_tokens() -> None:
    more = {"first_val_loss": 8.0, "val_loss": 5.0, "tokens_per_second": 1234.5, "sequences_per_second": 12.0}
    assert lines(**more, eval_samples=64)[1] == "  validation loss  8.0000 -> 5.0000 (-37.5%, of 64 samples)"
    assert lines(**more) == [
        "  training loss    9.0000 -> 6.0000 (-33.3%)",
        "  validation loss  8.0000 -> 5.0000 (-37.5%)",
        "  speed            1,234 tokens/s (median)",
    ]


def test_parts_of_the_loss_and_padding() -> None:
    more = {
        "first_mlm_loss": 8.3, "mlm_loss": 5.4, "first_mlm_accuracy": 0.01, "mlm_accuracy": 0.12, "first_nsp_loss": 0.7,
        "nsp_loss": 0.6, "first_val_loss": 9.0, "val_loss": 6.3, "first_val_mlm_loss": 8.3, "val_mlm_loss": 5.7,
        "tokens_per_second": 2000.0, "real_tokens_per_second": 1500.4, "sequences_per_second": 16.25, "mfu": 0.4,
    }  # fmt: skip
    assert lines(**more) == [
        "  training loss       9.0000 -> 6.0000 (-33.3%)",
        "  validation loss     9.0000 -> 6.3000 (-30.0%)",
        "  mlm loss            8.3000 -> 5.4000 (-34.9%)",
        "  nsp loss            0.7000 -> 0.6000 (-14.3%)",
        "  validation mlm loss 8.3000 -> 5.7000 (-31.3%)",
        "  mlm accuracy        0.0100 -> 0.1200",
        "  speed               16.2 sequences/s, 1,500 tokens/s without padding, MFU 40.0% (median)",
    ]


def test_what_is_not_known_is_left_out() -> None:
    assert lines(first_loss=None, loss=None, tokens_per_second=None) == []
    assert lines(loss=None) == []


def test_a_loss_that_is_not_finite_is_no_older_one() -> None:
    rows = [{"step": 5, "loss": 3.0, "val_loss": 2.0}, {"step": 10, "loss": None, "val_loss": None}]
    found = measured(rows)
    assert (found["loss"], found["loss_step"], found["val_loss"], found["val_loss_step"]) == (None, 10, None, 10)
    assert lines(**found) == ["  training loss    3.0000 -> not finite", "  validation loss  2.0000 -> not finite"]


def test_what_to_try_next_names_eval_after_a_step() -> None:
    line = "  recipe eval runs/a    # its losses on the validation data"
    assert line in summary(RESULTS, "toy", "runs/a").splitlines()
    assert line not in summary({**RESULTS, "step": 0, "stopped": "SIGTERM"}, "toy", "runs/a").splitlines()


def test_what_to_try_next_names_generate_where_the_model_can() -> None:
    line = "  recipe generate runs/a    # the model answers prompts that you type"
    assert line in summary(RESULTS, "toy", "runs/a", generates=True).splitlines()
    assert line not in summary(RESULTS, "toy", "runs/a").splitlines()
    assert line not in summary({**RESULTS, "step": 0, "stopped": "SIGTERM"}, "toy", "runs/a", generates=True)


def test_a_run_in_object_storage_is_named_by_its_address() -> None:
    found = summary({**RESULTS, "step": 5}, "toy", "work/a-1", address="s3://bucket/a", generates=True).splitlines()
    assert "  files            s3://bucket/a (metrics.jsonl, tensorboard/, checkpoints/)" in found
    assert "  working folder   work/a-1 (a copy)" in found
    assert [line.partition("    #")[0].strip() for line in found[found.index("next") + 1 :]] == [
        "recipe run s3://bucket/a",
        "recipe run work/a-1/job.yaml --processes 2",
        "recipe generate s3://bucket/a",
        "recipe eval s3://bucket/a",
        "recipe report work/a-1 --html",
        "tensorboard --logdir work/a-1/tensorboard",
    ]


def test_a_reader_that_is_gone_does_not_end_the_program() -> None:
    """Also at the end, where Python writes out what is still in its buffer."""
    code = "from recipe_core.train.metrics.report import show; input(); show('one'); show('two'); show('three')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(b"\n", timeout=60)
    assert (process.returncode, err) == (0, b"")
