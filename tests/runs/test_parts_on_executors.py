"""Data sets that executors make in parts, some of whose processes are killed: the bytes of one process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_core.testing.packages import install_plugin

FAULTS = Path(__file__).parents[2] / "core" / "tests" / "cli" / "plugin"
"""The folder of the plugin ``mortal_data``, whose executor ``killing`` kills each part twice, at random moments."""
LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]


@pytest.fixture(autouse=True)
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with texts, where the plugins and ``mortal_data`` are installed."""
    install_plugin(tmp_path / "site", "mortal", "mortal_data")
    paths = [tmp_path / "site", FAULTS]
    for path in paths:
        monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [*map(str, paths), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("RECIPE_PLUGINS", "megatron_gpt,bert_dp,mortal")
    monkeypatch.chdir(tmp_path)
    texts = [f"Document {number} has rain. It has {['snow', 'fog', 'hail'][number % 3]} too." for number in range(300)]
    Path("lines.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    Path("blocks.txt").write_text("\n\n".join(text.replace(". ", ".\n") for text in texts))


def equal(made: str, whole: str) -> None:
    """Compare two data sets by ``cmp``, and look for what was left behind."""
    names = sorted(path.relative_to(made) for path in Path(made).rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(whole) for path in Path(whole).rglob("*") if path.is_file())
    for name in names:
        subprocess.run(["cmp", Path(made, name), Path(whole, name)], check=True)
    assert not list(Path().glob(f"*{made}.*"))


@pytest.mark.parametrize("on", ["local:2", "killing"])
def test_token_files(on: str) -> None:
    assert main(["prepare", "gpt_indexed", "inputs=lines.jsonl", "vocab_size=300", "output=trained"]) == 0
    words = ["prepare", "gpt_indexed", "inputs=lines.jsonl", "tokenizer=trained/tokenizer.json", "engine=tokenizers"]
    assert main([*words, "output=whole"]) == 0
    assert main([*words, "output=made", "--on", on, "--parts", "3"]) == 0
    equal("made", "whole")


@pytest.mark.slow
@pytest.mark.parametrize("on", ["local:2", "killing"])
def test_shards_of_bert(on: str) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"0123456789", *LETTERS]
    Path("vocab.txt").write_text("\n".join([*pieces, *(f"##{one}" for one in (*"0123456789", *LETTERS))]) + "\n")
    words = [
        "prepare", "bert_hdf5", "inputs=blocks.txt", "documents=blank_line", "vocabulary=vocab.txt", "sequence=64",
        "max_predictions=10", "samples_per_shard=100", "dupe_factor=2", "test_share=0.1",
    ]  # fmt: skip
    assert main([*words, "output=whole"]) == 0
    assert main([*words, "output=made", "--on", on, "--parts", "3"]) == 0
    equal("made", "whole")
