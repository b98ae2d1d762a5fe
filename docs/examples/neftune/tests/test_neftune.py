"""The noise follows the formula, resumes exactly, is the same under tensor parallelism, and changes no evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from recipe_core import Structure
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.testing import PluginConformance, spawn
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

plugin = pytest.importorskip("recipe_neftune.plugin", reason="the example is not installed")
transform = pytest.importorskip("recipe_neftune.transform")
SAME = ["model.positions=32", "data.sequence=32", "train.device=cpu", "train.steps=4", "train.log_every=1"]
NOISE = ["transforms=neftune", "transform.neftune.alpha=20"]


class TestNeftune(PluginConformance):
    plugin = "recipe_neftune.plugin"


def test_noise_is_even_and_as_large_as_the_paper_says() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 16)
    model = transform.add_noise(plugin.Noise(alpha=5.0), nn.Sequential(embedding, nn.Linear(16, 2)), Structure())
    ids = torch.randint(10, (8, 64))
    plain = nn.functional.embedding(ids, embedding.weight)
    noise, bound = (model[0](ids) - plain).detach(), 5.0 / math.sqrt(64 * 16)
    assert 0.99 * bound < noise.abs().max() <= bound * (1 + 1e-5)
    assert noise.mean().abs() < 0.02 * bound
    assert float(noise.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert torch.equal(model.eval()[0](ids), plain)


def test_an_embedding_by_name() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(10, 4), "places": nn.Embedding(10, 4)})
    transform.add_noise(plugin.Noise(module="places"), model, Structure())
    ids = torch.arange(3)[None]
    assert torch.equal(model["words"](ids), model["words"].weight[ids])
    assert not torch.equal(model["places"](ids), model["places"].weight[ids])
    with pytest.raises(ConfigError, match="no embedding 'word'; did you mean 'words'"):
        transform.add_noise(plugin.Noise(module="word"), model, Structure())
    with pytest.raises(ConfigError, match="the model has no embedding, to which neftune could add noise"):
        transform.add_noise(plugin.Noise(), nn.Linear(2, 2), Structure())


def train(folder: Path, *words: str, processes: int = 1) -> list[float]:
    run(checked_job(load(), "megatron_gpt:tiny", [*SAME, *words], processes), folder)
    return [row["loss"] for row in read_rows(folder / METRICS) if "loss" in row]


def divided(folder: str) -> None:
    """Body of each of two processes."""
    train(Path(folder, "tp"), *NOISE, "layout=tp", "model.dropout=0", "model.attention_dropout=0", processes=2)


def test_runs_of_a_gpt(tmp_path: Path) -> None:
    pytest.importorskip("recipe_megatron_gpt", reason="the GPT is not installed")
    plain, noisy = train(tmp_path / "plain"), train(tmp_path / "noisy", *NOISE)
    assert len(plain) == len(noisy) == 4
    assert noisy[0] != plain[0]
    train(tmp_path / "halves", *NOISE, "train.stop_after=2")
    train(tmp_path / "halves", *NOISE)
    assert equal(tensors(tmp_path / "halves"), tensors(tmp_path / "noisy"))
    begun = f"train.init_from={tmp_path / 'plain'}"  # evaluated before the first step
    for name, words in (("without", []), ("with", NOISE)):
        train(tmp_path / name, begun, *words, "train.eval_every=4")
    first = [
        next(r["val_loss"] for r in read_rows(tmp_path / n / METRICS) if "val_loss" in r) for n in ("with", "without")
    ]
    assert first[0] == first[1]


def test_ranks_of_a_tensor_parallel_group_draw_the_same_noise(tmp_path: Path) -> None:
    pytest.importorskip("recipe_megatron_gpt", reason="the GPT is not installed")
    alone = train(tmp_path / "single", *NOISE, "model.dropout=0", "model.attention_dropout=0")
    spawn(divided, 2, str(tmp_path))
    rows = read_rows(tmp_path / "tp" / METRICS)
    assert [row["loss"] for row in rows if "loss" in row] == pytest.approx(alone, abs=1e-5)
