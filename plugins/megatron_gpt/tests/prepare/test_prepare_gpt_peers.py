"""Token files of real text against those of Megatron's preprocess_data, and token ids against transformers'."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ["RECIPE_DATA"])


@pytest.fixture(scope="module")
def gpt2() -> Path:
    if not (DATA / "gpt2" / "vocab.json").is_file():
        pytest.skip(f"{DATA} (RECIPE_DATA) has no gpt2/vocab.json")
    return DATA / "gpt2"


@pytest.fixture(scope="module")
def peers_tokenizer(gpt2: Path) -> Any:
    return pytest.importorskip("transformers").GPT2TokenizerFast.from_pretrained(str(gpt2))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, peers_tokenizer: Any) -> Path:
    """As Megatron's preprocess_data makes them: per document tokenise, append the end, add_document."""
    peer = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    prefix = tmp_path_factory.mktemp("peer") / "theirs"
    builder = peer.IndexedDatasetBuilder(f"{prefix}.bin", dtype=peer.DType.optimal_dtype(len(peers_tokenizer)))
    with gzip.open(DATA / "wiki-sample.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            ids = [*peers_tokenizer(json.loads(line)["text"]).input_ids, peers_tokenizer.eos_token_id]
            builder.add_document(ids, [len(ids)])
    builder.finalize(f"{prefix}.idx")
    return prefix


@pytest.mark.peer
@pytest.mark.parametrize("engine", ["tokenizers", "gigatoken"])
def test_wikipedia_in_the_bytes_of_megatron(
    tmp_path: Path, typed: Callable[..., tuple[int, str, str]], gpt2: Path, theirs: Path, engine: str
) -> None:
    if engine == "gigatoken":
        pytest.importorskip("gigatoken")
    peer = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    source = DATA / "wiki-sample.jsonl.gz"
    code, _, err = typed(f"inputs={source}", f"tokenizer={gpt2}", f"output={tmp_path / 'ours'}", f"engine={engine}")
    assert code == 0, err
    for ending in (".bin", ".idx"):
        ours = (tmp_path / "ours" / f"tokens{ending}").read_bytes()
        assert ours == theirs.with_suffix(ending).read_bytes()
    assert len(peer.IndexedDataset(str(tmp_path / "ours" / "tokens"))) == 693


@pytest.mark.peer
@pytest.mark.parametrize("folder", ["gpt2", "bert"])
def test_ids_of_transformers(folder: str, texts: list[str]) -> None:
    """Special tokens in the text, capitals, accents: as the peer reads the same files."""
    transformers = pytest.importorskip("transformers")
    if not (DATA / folder).is_dir():
        pytest.skip(f"{DATA} (RECIPE_DATA) has no {folder}")
    from recipe_core.checkpoint.inference.tokenizer import read_vocabulary

    kind = transformers.GPT2TokenizerFast if folder == "gpt2" else transformers.BertTokenizerFast
    peer = kind.from_pretrained(str(DATA / folder))
    ours = read_vocabulary(DATA / folder)
    for text in [*texts[:50], "Zoë said [MASK] to [SEP] THE <|endoftext|> [sep] x\u0301 ﬁ 北京"]:
        assert ours.encode(text, add_special_tokens=False).ids == peer(text, add_special_tokens=False).input_ids
