"""The table of batches in docs/reference/plugin-contracts.md is what the datasets give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from recipe_core import Run
from recipe_core.files import home
from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plugin-contracts.md"
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (\w+)[^|]* \| `\[(.*?)\]` \|", re.MULTILINE)


@pytest.mark.parametrize("recipe", ["megatron_gpt", "bert_dp", "hf_finetune"])
def test_a_batch_has_the_keys_types_and_shapes_of_the_table(recipe: str) -> None:
    words = {"bert_dp": ["data.packed=false"]}.get(recipe, [])
    job = resolve(load(), f"{recipe}:tiny", words)
    run = Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=job.train, cache=home(),
    )  # fmt: skip
    config = job.data.config
    batch = job.data.build(config, run).read("train", 0, 3)
    rows = [row for row in ROW.findall(PAGE.read_text("utf-8")) if row[0] == job.data.spec.name]
    sizes = {
        "b": 3,
        "s": getattr(config, "sequence", None),
        "p": getattr(config, "max_predictions", None),
        "n": getattr(config, "max_length", None),
    }
    said = {key: (f"torch.{kind}", [sizes[one] for one in shape.split(", ")]) for _, key, kind, shape in rows}
    assert set(job.data.spec.gives) <= said.keys()
    assert {key: (str(value.dtype), list(value.shape)) for key, value in batch.items()} == said
