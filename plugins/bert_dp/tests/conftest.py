from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from recipe_bert_dp.data.shards import PLAIN
from recipe_bert_dp.prepare.hdf5 import prepare
from recipe_bert_dp.prepare.pack import prepare as pack
from recipe_bert_dp.settings import PrepareHdf5, PreparePacked

WORDS = ["the", "a", "house", "river", "mountain", "walks", "sings", "slowly", "bright", "1984", "old", "new", "café"]
WORDS += ["東京", "unknownword", "of", "and", "under"]
PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", "the", "a", "house", "river", "mount"]
PIECES += [
    "##ain",
    "walk",
    "##s",
    "sing",
    "slow",
    "##ly",
    "bright",
    "1984",
    "old",
    "new",
    "cafe",
    "東",
    "京",
    "of",
    "and",
]


@pytest.fixture
def data() -> Path:
    """The folder with real data, which is not part of the project."""
    folder = Path(os.environ["RECIPE_DATA"])
    if not (folder / "wiki-sample.jsonl.gz").is_file():
        pytest.skip(f"no real data in {folder}; RECIPE_DATA names another folder")
    return folder


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """60 documents of one to forty sentences."""
    random = np.random.default_rng(5)
    path = tmp_path / "text.jsonl"
    lines = []
    for _ in range(60):
        sentences = [" ".join(random.choice(WORDS, random.integers(2, 20))) for _ in range(random.integers(1, 41))]
        lines.append(json.dumps({"text": ". ".join(s.capitalize() for s in sentences) + "."}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def settings(text: Path, vocabulary: Path, tmp_path: Path) -> Callable[..., PrepareHdf5]:
    """Settings of a small data set, with optional changes."""

    def make(**changes: Any) -> PrepareHdf5:
        defaults = {
            "inputs": (str(text),), "vocabulary": str(vocabulary), "output": str(tmp_path / "out"), "sequence": 64,
            "max_predictions": 10, "samples_per_shard": 300, "dupe_factor": 3, "test_share": 0.1, "workers": 1,
        }  # fmt: skip
        return PrepareHdf5(**{**defaults, **changes})

    return make


@pytest.fixture
def shards(settings: Callable[..., PrepareHdf5], tmp_path: Path) -> Path:
    """A prepared data set."""
    prepare(settings())
    return tmp_path / "out"


@pytest.fixture
def packed(shards: Path, tmp_path: Path) -> Path:
    """The same samples, packed."""
    pack(PreparePacked(inputs=(str(shards),), output=str(tmp_path / "packed"), workers=1, samples_per_shard=400))
    return tmp_path / "packed"


@pytest.fixture
def write_numbered() -> Callable[..., int]:
    """Write a plain shard whose samples hold their numbers in ``input_ids``; returns the number after the last."""

    def write(path: Path, first: int, rows: int, sequence: int = 8, **packing: Any) -> int:
        path.parent.mkdir(exist_ok=True, parents=True)
        with h5py.File(path, "w") as file:
            for name, kind in PLAIN.items():
                shape = {"m": (rows, 1), "n": (rows,)}.get("i" if name == "input_mask" else name[0], (rows, sequence))
                file.create_dataset(name, shape, kind, **packing)
            file["input_ids"][:] = np.arange(first, first + rows)[:, None]
            file["input_mask"][:] = 1
            file["masked_lm_positions"][:] = 1
        return first + rows

    return write
