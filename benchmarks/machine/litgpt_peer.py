"""Pre-train a GPT of litgpt on random tokens; shared_machine.py runs this with the Python of litgpt's environment.

    PYTHON benchmarks/machine/litgpt_peer.py FOLDER STEPS '{"layers": 2, ...}'

litgpt has an environment of its own, since it asks for a huggingface-hub that transformers refuses: install litgpt,
requests, which it needs for its last checkpoint, and the PyTorch of the other contestants. The model has the sizes
of ours, litgpt's rotary positions instead of learned ones, and no dropout. litgpt compiles it (torch.compile) and
trains it with torch's AdamW. The seconds from the end of one optimizer step to the end of the next one are written to
FOLDER/metrics.jsonl.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from litgpt import Config
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule
from litgpt.pretrain import setup
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


class RandomTokens(DataModule):  # type: ignore[misc]
    """litgpt's view of :class:`Words`."""

    def __init__(self, words: Words) -> None:
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

    def end_step(*arguments: object) -> None:
        ended.append(time.perf_counter())
        if len(ended) > 1:
            with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seconds": ended[-1] - ended[-2]}) + "\n")

    register_optimizer_step_post_hook(end_step)
    config = Config(
        block_size=sizes["sequence"], n_layer=sizes["layers"], n_embd=sizes["hidden"], n_head=sizes["heads"],
        vocab_size=sizes["vocabulary"], padded_vocab_size=sizes["vocabulary"], intermediate_size=4 * sizes["hidden"],
        parallel_residual=False, rotary_percentage=1.0,
    )  # fmt: skip
    train = TrainArgs(
        save_interval=None, log_interval=sizes["log_every"], global_batch_size=sizes["global_batch"],
        micro_batch_size=sizes["micro_batch"], lr_warmup_steps=None, max_norm=sizes["clip"], tie_embeddings=True,
        max_tokens=(steps + 1) * sizes["global_batch"] * sizes["sequence"],
    )  # fmt: skip
    setup(
        "", model_config=config, out_dir=folder / "litgpt", precision=sizes["precision"],
        data=RandomTokens(Words(sizes["sequence"], sizes["vocabulary"])), train=train, devices=1, logger_name="csv",
        eval=EvalArgs(interval=1 << 30, max_iters=1, final_validation=False),
        optimizer={"class_path": "torch.optim.AdamW", "init_args": {"lr": sizes["lr"], "weight_decay": 0.1}},
    )  # fmt: skip


if __name__ == "__main__":
    out, count, described = sys.argv[1:]
    Path(out).mkdir(parents=True)
    pretrain(Path(out), int(count), json.loads(described))
