"""Text and loss of ``recipe generate`` and ``eval`` beside those of transformers on the export."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.cli.main import main
from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

LAYOUTS = {"ddp": [], "tp": ["layout=tp"], "pp": ["layout=pp"], "fsdp": ["layout=fsdp"]}
WORDS = ["train.steps=4", "train.stop_after=3", "train.eval_every=0", "train.lr=1e-3", "model.init_std=0.3"]


def train(folder: str) -> None:
    """A run of each layout, one after the other in the same two processes."""
    registry, store = load(), os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(LAYOUTS.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        job = checked_job(registry, "megatron_gpt:tiny", [*WORDS, *words], int(os.environ["WORLD_SIZE"]))
        run(job, Path(folder, name))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    spawn(train, 2, str(folder))
    return folder


@pytest.mark.peer
@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_text_and_loss(runs: Path, layout: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    source, hf = str(runs / layout), tmp_path / "hf"
    text = "A module that is imported returns its name.\n" * 12
    (tmp_path / "my.txt").write_text(text)
    assert main(["convert", source, str(hf), "--to", "hf", "--drop", "optimizer"]) == 0
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(hf)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(hf).eval()
    capfd.readouterr()

    prompt = "This function returns"
    assert main(["generate", source, "--prompt", prompt, "--temperature", "0", "--tokens", "40", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    ids = tokenizer(prompt, return_tensors="pt")
    new = theirs.generate(
        **ids, do_sample=False, max_new_tokens=40, eos_token_id=tokenizer.eos_token_id, pad_token_id=0
    )[0, ids["input_ids"].shape[1] :].tolist()
    if new[-1] == tokenizer.eos_token_id:
        new.pop()
    assert len(set(new)) > 10  # large weights: no text that repeats one token
    assert answer["ids"] == new
    assert answer["text"] == tokenizer.decode(new)

    line = ["eval", source, "--data", str(tmp_path / "my.txt"), "--stride", "32", "--json", str(tmp_path / "out.json")]
    assert main(line) == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert row["loss"] == pytest.approx(sliding(theirs, tokenizer(text, return_tensors="pt")["input_ids"][0]), abs=1e-5)


@torch.no_grad()
def sliding(model: Any, ids: torch.Tensor, window: int = 64, stride: int = 32) -> float:
    """The mean loss of every token but the first, from the logits of transformers."""
    losses = []
    for start in range(0, max(len(ids) - 1 - window, 0) + stride, stride):
        part = ids[start : start + window + 1]
        logits = model(part[None, :-1]).logits[0].double()
        each = torch.nn.functional.cross_entropy(logits, part[1:], reduction="none")
        losses.append(each[window - stride if start else 0 :])
    every = torch.cat(losses)
    assert len(every) == len(ids) - 1
    return float(every.mean())
