"""Memory of ``recipe prepare gpt_indexed`` with a long document."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_megatron_gpt.data.corpus import train_tokenizer

PEAK = """
import resource, sys
from recipe_core.cli.main import main
code = main(["prepare", "gpt_indexed", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024), file=sys.stderr)
sys.exit(code)
"""


def english(words: list[str]) -> str:
    return " ".join(words) + ".\n"


def chinese(words: list[str]) -> str:
    """Lines without any space or ASCII."""
    return "".join(chr(0x4E00 + hash_of(word) % 20_000) for word in words) + "。\n"


def hash_of(word: str) -> int:
    return sum(ord(c) * 31**n for n, c in enumerate(word))


def peak(folder: Path, engine: str, text: str) -> int:
    """Bytes of memory that preparing ``text`` as one document took."""
    (folder / "text.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    words = [f"inputs={folder / 'text.jsonl'}", f"tokenizer={folder / 'tokenizer.json'}", "overwrite=true"]
    words += [f"output={folder / 'out'}", f"engine={engine}", "workers=1"]
    done = subprocess.run([sys.executable, "-c", PEAK, *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("language", [english, chinese])
@pytest.mark.parametrize("engine", ["tokenizers", pytest.param("gigatoken", marks=pytest.mark.peer)])
def test_a_long_document_takes_a_few_times_its_size(
    tmp_path: Path, engine: str, language: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer that is given it as a whole takes a hundred times as much."""
    if engine == "gigatoken":
        pytest.importorskip("gigatoken")
    monkeypatch.setenv("RECIPE_CACHE", str(tmp_path / "cache"))
    chance = random.Random(4)
    lines = [
        language(["".join(chance.choices("etaoinshrdlu", k=chance.randint(1, 9))) for _ in range(12)])
        for _ in range(20_000)
    ]
    train_tokenizer(lines[:2000], 2000).save(str(tmp_path / "tokenizer.json"))
    text = "".join(lines)
    short, long = text[:100_000], text * (20_000_000 // len(text.encode()))
    grown = peak(tmp_path, engine, long) - peak(tmp_path, engine, short)
    assert grown < 16 * len(long.encode())
