"""Fixtures of this plugin's tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.state import gather_state, weights
from recipe_core.cli.main import main
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run
from recipe_megatron_gpt.data.indexed import IndexedWriter
from recipe_megatron_gpt.model.gpt import GptModel


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Run]:
    """A run of one process on the CPU, with these settings of ``train``."""

    def make(vocabulary: int | None = None, cache: Path | None = None, **train: Any) -> Run:
        return Run(
            device=torch.device("cpu"),
            mesh=None,
            rank=0,
            world_size=1,
            local_rank=0,
            dp_rank=0,
            dp_size=1,
            train=Train(**train),
            cache=cache or tmp_path / "cache",
            vocabulary=vocabulary,
        )

    return make


@pytest.fixture
def write_tokens(tmp_path: Path) -> Callable[..., str]:
    """Write token files of documents with these sizes; ids count upwards from ``first``, so that each is known."""

    def write(sizes: Sequence[int], name: str = "tokens", dtype: str = "uint16", first: int = 0) -> str:
        prefix = tmp_path / name
        total = int(np.sum(sizes))
        with IndexedWriter(prefix, dtype) as writer:
            writer.add_documents(np.arange(first, first + total), sizes)
        return str(prefix)

    return write


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Write the model and, with ``optimizer``, AdamW's states after two steps as a checkpoint of format dcp."""

    def write(module: GptModel, name: str = "run", *, optimizer: bool = False) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        state: dict[str, Any] = {"model": weights(module)}
        if optimizer:
            state = trained_state(module)
        Dcp().save(folder, {**state, "progress": {"step": 2, "consumed_samples": 16}})
        sections = {"model": {"use": "gpt", **asdict(module.config)}, "train": {"lr": 1e-3, "weight_decay": 0.1}}
        (folder / "job.yaml").write_text(yaml.safe_dump(sections))
        return folder

    return write


def trained_state(module: GptModel) -> dict[str, Any]:
    """The state of a run after two steps of AdamW; all moments differ."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return gather_state(module, optimizer)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """300 different texts, with every kind of character."""
    chance = random.Random(5)
    words = ["the", "data", "It's", "naïve", "東京", "end.", "\n\nNext", "(a)", "  x", "<|endoftext|>", "12,345", "🤖"]
    return [" ".join(chance.choices(words, k=chance.randint(1, 120))) for _ in range(300)]


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Type ``recipe prepare gpt_indexed ...``; the exit code and both outputs."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["prepare", "gpt_indexed", *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return run
