"""Data of the cases, generated from a seed: token files, BERT shards, and the batches of the peers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Case

FULL = 0.55
"""Share of BERT's long samples that fill their row; the lengths of the others are uniform. Together 78 % of all tokens
are real, as in Wikipedia."""


def token_files(case: Case, folder: Path) -> str:
    """Write Megatron's token files of random documents; return their path without the ending."""
    from recipe_megatron_gpt.data.indexed import write_idx

    prefix, count = folder / "tokens", 2048 if not case.dry else 64
    random = np.random.default_rng(1)
    sizes = random.integers(case.sequence // 4, 3 * case.sequence, count).astype(np.int32)
    if not prefix.with_suffix(".idx").exists():
        folder.mkdir(parents=True, exist_ok=True)
        random.integers(0, min(case.vocabulary, 50257), int(sizes.sum()), dtype=np.uint16).tofile(f"{prefix}.bin")
        part = folder / "tokens.idx.part"
        with part.open("wb") as file:
            write_idx(file, np.dtype(np.uint16), sizes, np.arange(count + 1))
        part.rename(prefix.with_suffix(".idx"))
    return str(prefix)


def bert_rows(case: Case) -> dict[str, Any]:
    """Return samples of BERT, one per row: full rows in phase 1, various lengths in phase 2."""
    from recipe_bert_dp.testing import plain_rows

    count, random = 64 if case.dry else 8192, np.random.default_rng(2)
    lengths = np.full(count, case.sequence)
    if case.packed:
        short = random.random(count) > FULL
        lengths[short] = random.integers(case.sequence // 8, case.sequence, int(short.sum()))
    return dict(
        plain_rows(
            lengths.tolist(), sequence=case.sequence, predictions=case.predictions, vocabulary=case.vocabulary, seed=3
        )
    )


def bert_shards(case: Case, folder: Path) -> tuple[str, float]:
    """Write shards, packed if the case is; return their folder and the sequences per row."""
    import h5py

    plain = folder / "plain"
    if not plain.is_dir():
        rows, part = bert_rows(case), folder / "part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with h5py.File(part / "training_0.hdf5", "w") as file:
            for name, values in rows.items():
                file[name] = values.numpy().astype(np.int32)
        part.rename(plain)
    if not case.packed:
        return str(plain), 1.0
    from recipe_bert_dp.prepare.pack import prepare
    from recipe_bert_dp.settings import PreparePacked

    packed = folder / "packed"
    if not packed.is_dir():
        prepare(PreparePacked(inputs=(str(plain),), output=str(packed), workers=1))
    sequences = rows_there = 0
    for path in sorted(packed.rglob("*.hdf5")):
        with h5py.File(path) as file:
            sequences += _sequences(file)
            rows_there += len(file["input_ids"])
    return str(packed), sequences / rows_there


def _sequences(file: Any) -> int:
    """Sum the highest number in each row's mask: the sequences of a packed shard."""
    return int(file["input_mask"][:].max(1).sum())


def classifier(case: Case, folder: Path) -> str:
    """Write a BERT with random weights and a tokenizer of the pairs' vocabulary, for ``from_pretrained``."""
    from transformers import AutoModel, BertConfig

    from recipe_hf_finetune.data import vocabulary
    from recipe_hf_finetune.settings import TextClassification

    place, part = folder / "model", folder / "model.part"
    if not place.is_dir():
        shutil.rmtree(part, ignore_errors=True)
        config = BertConfig(
            vocab_size=case.vocabulary, hidden_size=case.hidden, num_hidden_layers=case.layers,
            num_attention_heads=case.heads, intermediate_size=4 * case.hidden,
        )  # fmt: skip
        AutoModel.from_config(config).save_pretrained(part)
        for name, text in vocabulary.files(TextClassification(pairs=pairs(case), vocabulary=case.vocabulary)).items():
            (part / name).write_text(text, encoding="utf-8")
        part.rename(place)
    return str(place)


def pairs(case: Case) -> int:
    """Return the number of training pairs: 3,668 as in MRPC, unless the case is small."""
    return 64 if case.dry else 3668


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens with labels, in the form of transformers' language models."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(min(self._case.vocabulary, 50257), (self._case.sequence,), generator=generator)
        return {"input_ids": ids, "labels": ids}


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """BERT's unpacked rows under the names of transformers' BertForPreTraining, which labels every position."""

    def __init__(self, case: Case) -> None:
        self._rows = {name: torch.as_tensor(values) for name, values in bert_rows(case).items()}

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = {name: values[index % len(values)] for name, values in self._rows.items()}
        places = row["masked_lm_positions"]
        labels = torch.full_like(row["input_ids"], -100)
        labels[places[places > 0]] = row["masked_lm_ids"][places > 0]
        return {
            "input_ids": row["input_ids"], "attention_mask": row["input_mask"], "token_type_ids": row["segment_ids"],
            "labels": labels, "next_sentence_label": row["next_sentence_labels"],
        }  # fmt: skip
