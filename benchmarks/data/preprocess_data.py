"""The work of Megatron-LM's tools/preprocess_data.py on JSON lines (2026), as a command: the peer of prepare_gpt.py.

A pool of 2 processes, pool.imap of an encoder per line with chunks of 32, transformers' GPT2TokenizerFast in each
process, and megatron-core's IndexedDatasetBuilder in the parent. It imports what these need and nothing else.

    python benchmarks/data/preprocess_data.py INPUT.jsonl FOLDER_OF_THE_TOKENIZER OUTPUT
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

WORKERS = 2


class Encoder:
    """The encoder of each line."""

    tokenizer: Any
    end: int

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def initializer(self) -> None:
        """Load the tokenizer, in each process."""
        from transformers import GPT2TokenizerFast

        Encoder.tokenizer = GPT2TokenizerFast.from_pretrained(self.folder)
        Encoder.end = Encoder.tokenizer.eos_token_id

    def encode(self, line: str) -> tuple[dict[str, list[int]], dict[str, list[int]], int]:
        """One document: its ids, with the end, and how many."""
        ids = Encoder.tokenizer(json.loads(line)["text"]).input_ids
        ids.append(Encoder.end)
        return {"text": ids}, {"text": [len(ids)]}, len(line)


def imports() -> None:
    """Load what the pool's processes share, before they are forked."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in ("megatron.core.datasets.indexed_dataset", "transformers.models.gpt2.tokenization_gpt2"):
        import_module(name)


def preprocess(source: Path, tokenizer: Path, out: Path) -> None:
    """Make ``tokens.bin`` and ``tokens.idx`` in the new folder ``out``."""
    imports()
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    out.mkdir()
    encoder = Encoder(str(tokenizer))
    with (
        source.open(encoding="utf-8") as file,
        multiprocessing.get_context("fork").Pool(WORKERS, initializer=encoder.initializer) as pool,
    ):
        builder = IndexedDatasetBuilder(str(out / "tokens.bin"), dtype=DType.optimal_dtype(50_257))
        for document, lengths, _ in pool.imap(encoder.encode, file, 32):
            builder.add_document(document["text"], lengths["text"])
        builder.finalize(str(out / "tokens.idx"))


if __name__ == "__main__":
    preprocess(*map(Path, sys.argv[1:]))
