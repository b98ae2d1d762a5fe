from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recipe_core.train.metrics.curves import Row, read_rows

TEXT = "the old man reads a book about rivers while his dog sleeps near the warm fire in winter"
WORDS = TEXT.split()


@dataclass(frozen=True)
class Done:
    """Exit code, output and run folder of a command."""

    code: int
    text: str
    out: Path

    @property
    def rows(self) -> list[Row]:
        return read_rows(self.out / "metrics.jsonl")

    @property
    def results(self) -> dict[str, Any]:
        results: dict[str, Any] = json.loads((self.out / "results.json").read_text())
        return results


@pytest.fixture
def data() -> Path:
    """The folder with real data, which is not part of the project."""
    folder = Path(os.environ["RECIPE_DATA"])
    if not (folder / "mrpc" / "msr_paraphrase_train.txt").is_file():
        pytest.skip(f"no real data in {folder}; RECIPE_DATA names another folder")
    return folder


@pytest.fixture
def fine_tune(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run ``recipe run hf_finetune:tiny ARGS`` in this process, which has imported transformers already."""
    from recipe_core.cli.main import main

    def run(*args: str, out: Path = tmp_path / "run", name: str = "hf_finetune:tiny") -> Done:
        capfd.readouterr()
        code = main(["run", name, *args, "--out", str(out)])
        shown = capfd.readouterr()
        return Done(code, shown.out + shown.err, out)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of training and validation pairs; the label is 1 if both begin with the same word."""
    data = tmp_path / "data"
    data.mkdir()
    for split, count in (("train", 27), ("validation", 10)):
        lines = ["sentence1\tsentence2\tlabel"]
        for number in range(count):
            first, second = WORDS[number % 7 :][:6], WORDS[number % 5 :][:5]
            second = [first[0], *second] if number % 2 else second
            lines.append(f'"{" ".join(first)}\t{" ".join(second)}\t{number % 2}')
        (data / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return data


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Hugging Face with a small BERT, dropout and a vocabulary of whole words."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    model = tmp_path_factory.mktemp("bert")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS), *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    pieces = list(dict.fromkeys(pieces))
    (model / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    BertForPreTraining(config).save_pretrained(str(model))
    return model
