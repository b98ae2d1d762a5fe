"""Pre-train a model of litgpt; shared_machine.py and train_llama.py run this with the Python of litgpt's environment.

    PYTHON benchmarks/litgpt_peer.py FOLDER STEPS '{"layers": 2, ...}'

litgpt has an environment of its own, since it asks for a huggingface-hub that transformers refuses: install litgpt,
requests, which it needs for its last checkpoint, and the PyTorch of the other contestants. Sizes with ``mlp`` make a
Llama; without it, the model is a GPT with litgpt's rotary positions instead of learned ones, and no dropout. ``rows``
names a file of ``tokens`` and ``labels``, the rows to train on in their order; without it, tokens are random. litgpt
compiles the model (torch.compile) and trains it with torch's AdamW. FOLDER/metrics.jsonl gets a line with the number of
parameters, and for each step but the first the seconds from the end of the one before; FOLDER/losses.json gets the
losses.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import litgpt.pretrain
import numpy as np
import torch
from litgpt import Config
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset


class Words(Dataset[torch.Tensor]):
    """Random tokens, one more than a sequence has."""

    def __init__(self, sequence: int, vocabulary: int) -> None:
        self.sequence, self.vocabulary = sequence, vocabulary

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(self.vocabulary, (self.sequence + 1,), generator=torch.Generator().manual_seed(index))


def samples(sizes: dict[str, Any]) -> Any:
    """Return the rows that ``sizes`` names, with the last label of each, or random ones."""
    if "rows" not in sizes:
        return Words(sizes["sequence"], sizes["vocabulary"])
    rows = np.load(sizes["rows"])
    return torch.from_numpy(np.concatenate([rows["tokens"], rows["labels"][:, -1:]], axis=1))


def shape(sizes: dict[str, Any]) -> dict[str, Any]:
    """Return litgpt's settings of the blocks."""
    if "mlp" not in sizes:
        return {"intermediate_size": 4 * sizes["hidden"]}
    return {
        "intermediate_size": sizes["mlp"], "mlp_class_name": "LLaMAMLP", "norm_class_name": "RMSNorm", "bias": False,
        "norm_eps": sizes["norm_eps"], "n_query_groups": sizes["kv_heads"],
    }  # fmt: skip


class Tokens(DataModule):  # type: ignore[misc]
    """litgpt's view of the samples."""

    def __init__(self, words: Any) -> None:
        super().__init__()
        self.words, self.batch = words, 1

    def connect(self, tokenizer: object = None, batch_size: int = 1, max_seq_length: int | None = None) -> None:
        self.batch = batch_size

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(self.words, batch_size=self.batch)

    val_dataloader = train_dataloader


def pretrain(folder: Path, steps: int, sizes: dict[str, Any]) -> None:
    """Train for ``steps`` steps."""
    ended: list[float] = []

    def end_step(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        ended.append(time.perf_counter())
        if len(ended) > 1:
            row = {"seconds": ended[-1] - ended[-2]}
        else:
            row = {"parameters": sum(one.numel() for group in optimizer.param_groups for one in group["params"])}
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    register_optimizer_step_post_hook(end_step)
    config = Config(
        block_size=sizes["sequence"], n_layer=sizes["layers"], n_embd=sizes["hidden"], n_head=sizes["heads"],
        vocab_size=sizes["vocabulary"], padded_vocab_size=sizes["vocabulary"], parallel_residual=False,
        rotary_percentage=1.0, **shape(sizes),
    )  # fmt: skip
    train = TrainArgs(
        save_interval=None, log_interval=sizes["log_every"], global_batch_size=sizes["global_batch"],
        micro_batch_size=sizes["micro_batch"], lr_warmup_steps=None, max_norm=sizes["clip"], tie_embeddings=True,
        max_tokens=(steps + 1) * sizes["global_batch"] * sizes["sequence"],
    )  # fmt: skip
    with patch.object(litgpt.pretrain, "save_checkpoint"):  # it parses this script's arguments as litgpt's
        litgpt.pretrain.setup(
            "", model_config=config, out_dir=folder / "litgpt", precision=sizes["precision"],
            data=Tokens(samples(sizes)), train=train, devices=1, logger_name="csv",
            eval=EvalArgs(interval=1 << 30, max_iters=1, final_validation=False),
            optimizer={"class_path": "torch.optim.AdamW", "init_args": {"lr": sizes["lr"], "weight_decay": 0.1}},
        )  # fmt: skip
    (log,) = (folder / "litgpt" / "logs").rglob("metrics.csv")
    with log.open(encoding="utf-8") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    (folder / "losses.json").write_text(json.dumps(losses), encoding="utf-8")


if __name__ == "__main__":
    out, count, described = sys.argv[1:]
    Path(out).mkdir(parents=True)
    pretrain(Path(out), int(count), json.loads(described))
