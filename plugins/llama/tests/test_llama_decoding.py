"""Generation with a key-value cache, and the commands that use a trained model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.checkpoint.inference.decoder import Decoder
from recipe_core.cli.main import main
from recipe_core.testing import run_tiny
from recipe_llama.model.llama import LlamaModel, build
from recipe_llama.settings import Llama

SMALL = Llama(layers=2, hidden=32, heads=4, kv_heads=2, mlp=48, positions=24, vocabulary=97, init_std=0.3)
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "one head of keys": {"kv_heads": 1, "tied": True},
    "window": {"window": 4, "window_from": 1},
    "qwen": {"qk_norm": True, "attention_bias": "all"},
    "dynamic": {"rope_type": "dynamic", "rope_factor": 3.0, "positions": 8},
    "yarn": {"rope_type": "yarn", "rope_factor": 4.0, "positions": 8},
}
Typed = Callable[..., tuple[int, str, str]]


def model(changed: dict[str, Any]) -> LlamaModel:
    torch.manual_seed(4)
    return build(replace(SMALL, **changed))[0].eval()


def continued(next_logits: Callable[[list[int]], torch.Tensor], prompt: list[int]) -> list[int]:
    """Return the most likely tokens after ``prompt``."""
    ids = [*prompt]
    while len(ids) < 22:
        ids.append(int(next_logits(ids).argmax()))
    return ids


@pytest.mark.parametrize("changed", KINDS.values(), ids=KINDS)
@torch.no_grad()
def test_the_cache_changes_no_token(changed: dict[str, Any]) -> None:
    module, prompt, seen = model(changed), [7, 50, 96, 7, 12], list[int]()
    decoder = Decoder(module, 24)

    def cached(ids: list[int]) -> torch.Tensor:
        new = ids[len(seen) :]
        seen.extend(new)
        return decoder.feed(new)

    whole = continued(lambda ids: module({"tokens": torch.tensor([ids])})[0, -1], prompt)
    assert continued(cached, prompt) == whole
    assert len(set(whole[5:])) > 3  # or any model would agree
    again = Decoder(module, 24)
    again.feed(whole[:9])  # several tokens behind those in the cache
    torch.testing.assert_close(again.feed(whole[9:20]), module({"tokens": torch.tensor([whole[:20]])})[0, -1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny variant."""
    out = tmp_path_factory.mktemp("runs") / "run"
    run_tiny("llama", out, "train.steps=2", "train.eval_every=0")
    return out


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str]) -> Typed:
    def type_it(*words: object) -> tuple[int, str, str]:
        code = main([*map(str, words)])
        return code, *capfd.readouterr()

    return type_it


def test_generate(trained: Path, line: Typed) -> None:
    words = ("generate", trained, "--prompt", "This function", "--tokens", 12, "--seed", 3, "--json")
    first, again, other = line(*words), line(*words), line(*words, "--seed", 4)
    assert first[0] == 0, first[2]
    assert first == again != other
    assert json.loads(first[1])["tokens"] == 12


def test_an_export_and_a_text_of_ones_own(trained: Path, line: Typed, tmp_path: Path) -> None:
    """The folder has no job.yaml to speak of its data, and its tokenizer beside it."""
    assert line("convert", trained, tmp_path / "hf", "--to", "hf", "--drop", "optimizer")[0] == 0
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text())["eos_token_id"] == 0
    assert "pipeline_tag: text-generation" in (tmp_path / "hf" / "README.md").read_text()
    (tmp_path / "hf" / "job.yaml").unlink()
    (tmp_path / "hf" / "checkpoint.json").unlink()
    (tmp_path / "my.txt").write_text("The first line, and what follows it.\n" * 20)
    made = line(
        "prepare", "gpt_indexed", f"inputs={tmp_path / 'my.txt'}", f"output={tmp_path / 'my'}",
        f"tokenizer={tmp_path / 'hf' / 'tokenizer.json'}", "append_eod=false",
    )  # fmt: skip
    assert made[0] == 0, made[2]
    data = ("--data", tmp_path / "my.txt", "--data", tmp_path / "my")
    code, _, err = line("eval", trained, tmp_path / "hf", *data, "--json", tmp_path / "out.json")
    assert code == 0, err
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    losses = {row["loss"] for row in results}
    assert len(results) == 4
    assert max(losses) - min(losses) < 0.02 * max(losses)
    assert results[0]["perplexity"] == pytest.approx(math.exp(results[0]["loss"]))
    assert results[0]["bits_per_byte"] > 0
    assert line("eval", trained, "--limit", 200)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "--window", "65", "--prompt", "x"], "--window: expected at most 64, the positions of the model"),
        (["eval", "--stride", "65"], "--stride: expected at most 64, the window, got 65"),
        (["eval", "--data", "gone"], "--data: gone: neither token files (.bin and .idx) nor a text"),
    ],
)
def test_mistakes(trained: Path, line: Typed, words: list[str], message: str) -> None:
    code, out, err = line(words[0], trained, *words[1:])
    assert (code, out) == (2, "")
    assert message in err
