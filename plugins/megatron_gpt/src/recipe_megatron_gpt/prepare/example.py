"""Small inputs for ``recipe prepare gpt_indexed``, to check its determinism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipe_megatron_gpt.settings import TRAIN


def example(folder: Path) -> dict[str, Any]:
    """Write documents as JSON lines into ``folder``; return the settings that prepare them."""
    lines = [json.dumps({"text": f"Document {n} of many. " + f"It counts to {n * n}. " * (n % 7)}) for n in range(200)]
    path = folder / "documents.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"inputs": [str(path)], "tokenizer": TRAIN, "vocab_size": 320, "engine": "tokenizers", "workers": 1}
