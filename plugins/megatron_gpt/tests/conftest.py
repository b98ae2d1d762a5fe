"""What several tests of this plugin need."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipe_core.cli import main
from recipe_core.parallel import Run
from recipe_core.settings import Train
from recipe_megatron_gpt.indexed import IndexedWriter


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
