"""Exported checkpoints are Hugging Face's: transformers gives the same logits, and they come back unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from recipe_core import CheckpointError
from recipe_core.testing import command, run_tiny
from recipe_decoder.hf import HuggingFace
from recipe_decoder.model import DecoderModel, build, example
from recipe_decoder.settings import Decoder

SIZES = Decoder(layers=2, hidden=32, heads=4, kv_heads=2, mlp=48, positions=32, vocabulary=512)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a run's or of a Hugging Face folder's checkpoint, under our names."""
    from recipe_core.checkpoint.formats.dcp import Dcp

    opened = Dcp().open(folder)["model"]
    return {name: tensor.read() for name, tensor in opened.items()}


@pytest.mark.peer
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_gives_the_same_logits(tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run_tiny("decoder", tmp_path / "run", "train.lr=0.02", "train.warmup_steps=0", f"model.tied={str(tied).lower()}")
    command("convert", str(tmp_path / "run"), str(tmp_path / "hf"), "--to", "hf", "--drop", "optimizer")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "hf").eval()
    module, _ = build(Decoder(**{**vars(SIZES), "tied": tied}))
    assert isinstance(module, DecoderModel)
    saved = weights(tmp_path / "run" / "checkpoints" / "step-4")
    lacking = module.load_state_dict(saved, strict=False)
    assert lacking.missing_keys == (["head.weight"] if tied else [])
    assert lacking.unexpected_keys == []
    batch = example(SIZES)
    with torch.no_grad():
        torch.testing.assert_close(module(batch), theirs(batch["tokens"]).logits, rtol=0, atol=1e-5)
    assert theirs.config.tie_word_embeddings is tied

    command("convert", str(tmp_path / "hf"), str(tmp_path / "back"), "--to", "dcp")
    back = weights(tmp_path / "back")
    assert back.keys() == saved.keys()
    assert all(back[name].equal(tensor) for name, tensor in saved.items())


def test_settings_come_from_config_json() -> None:
    naming = HuggingFace()
    for tied in (True, False):
        config = Decoder(**{**vars(SIZES), "tied": tied, "theta": 500000.0})
        texts = naming.adapter(config).files
        assert Decoder(**(naming.settings(texts, {}) or {})) == config
    old = {**json.loads(texts["config.json"]), "rope_parameters": None, "rope_theta": 12.5}
    assert (naming.settings({"config.json": json.dumps(old)}, {}) or {})["theta"] == 12.5
    assert naming.settings({"config.json": json.dumps({"model_type": "gpt2"})}, {}) is None
    assert naming.settings({}, {}) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mlp_bias": True}, "a Llama that decoder cannot be: mlp_bias is True and not False"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type is 'llama3' and not 'default'"),
    ],
)
def test_another_llama_is_refused(changed: dict[str, object], said: str) -> None:
    naming = HuggingFace()
    texts = json.loads(naming.adapter(SIZES).files["config.json"])
    with pytest.raises(CheckpointError, match=said):
        naming.settings({"config.json": json.dumps({**texts, **changed})}, {})
