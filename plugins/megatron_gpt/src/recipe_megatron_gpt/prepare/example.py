"""Small inputs for ``recipe prepare gpt_indexed``, to check its determinism."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from recipe_megatron_gpt.data.corpus import train_tokenizer
from recipe_megatron_gpt.settings import TRAIN


def part_example(folder: Path) -> dict[str, Any]:
    """As :func:`example`, with a tokenizer that is there, as parts need it, and several files."""
    settings = example(folder)
    text = "".join(f"A block.\nIt is the {n}th.\n\n" for n in range(40))
    (folder / "blocks.txt").write_text(text, encoding="utf-8")
    with gzip.open(folder / "packed.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"text": "A packed document."}))
    train_tokenizer([text], 300).save(str(folder / "tokenizer.json"))
    names = ("documents.jsonl", "packed.jsonl.gz", "blocks.txt")
    del settings["vocab_size"]
    return settings | {
        "inputs": [str(folder / name) for name in names],
        "documents": "blank_line",
        "tokenizer": str(folder / "tokenizer.json"),
    }


def example(folder: Path) -> dict[str, Any]:
    """Write documents as JSON lines into ``folder``; return the settings that prepare them."""
    lines = [json.dumps({"text": f"Document {n} of many. " + f"It counts to {n * n}. " * (n % 7)}) for n in range(200)]
    path = folder / "documents.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"inputs": [str(path)], "tokenizer": TRAIN, "vocab_size": 320, "engine": "tokenizers", "workers": 1}
