"""Every installed recipe, through the real command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.testing import run_tiny
from recipe_core.train.start.check import checked_job

WORDS = ("train.steps=6", "train.log_every=1", "train.eval_every=2")


@pytest.mark.parametrize("name", load().names("recipe"))
def test_the_number_of_processes_may_change_at_each_resume(name: str, tmp_path: Path) -> None:
    whole = run_tiny(name, tmp_path / "whole", *WORDS)
    team = load().get("recipe", name).processes  # which no process can be alone
    for processes in (2, 1, 4) if team == 1 else (team, 2 * team, team):
        done = run_tiny(name, tmp_path / "parts", *WORDS, "train.stop_after=2", "--processes", str(processes))
        assert done.results["world_size"] == processes
    for key in ("loss", "val_loss"):
        assert done.column(key) == pytest.approx(whole.column(key), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["megatron_gpt:tiny", "model=bert_pretraining"], "bert_pretraining takes input_ids, input_mask, segment_ids"),
        (
            ["megatron_gpt:tiny", "model=sequence_classifier"],
            "which gpt_indexed does not give (it gives tokens, labels",
        ),
        (["bert_dp:tiny", "model=gpt"], "gpt takes tokens, labels, which bert_hdf5 does not give"),
    ],
)
def test_a_model_and_a_dataset_of_other_batches(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked_job(load(), words[0], words[1:], 1)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["llama:tiny", "megatron_gpt:tiny"])
def test_a_model_is_built_without_the_compiler(name: str) -> None:
    """Its imports would take a third of the time from Enter to the first step."""
    code = (
        "import sys; from recipe_core.hooks.registry import load; from recipe_core.layouts.built import build_model; "
        "from recipe_core.settings.job import resolve; build_model(resolve(load(), sys.argv[1]).model); "
        "sys.exit(', '.join({'sympy', 'torch._dynamo', 'torch.distributed.tensor'} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
