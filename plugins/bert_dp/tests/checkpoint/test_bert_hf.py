"""Checkpoints of Hugging Face: converted from the scripts' and from runs, read back, and as initial weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForPreTraining, BertModel

from recipe_bert_dp.data.samples import build as build_data
from recipe_bert_dp.settings import BertHdf5
from recipe_core import Train
from recipe_core.cli.main import main
from recipe_core.files import home
from recipe_core.hooks.registry import load
from recipe_core.layouts.parallel import Run
from recipe_core.settings.job import resolve
from recipe_core.testing import run_tiny
from recipe_core.train.start.resume import start_problems


def bert_config() -> BertConfig:
    return BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=64,
    )  # fmt: skip


@pytest.fixture
def model() -> BertForPreTraining:
    torch.manual_seed(0)
    return BertForPreTraining(bert_config())


@pytest.fixture
def file(tmp_path: Path, model: BertForPreTraining) -> Path:
    """The minimal form of the published scripts' file."""
    path = tmp_path / "ckpt_3.pt"
    torch.save({"model": model.state_dict(), "files": [0], "epoch": 0}, path)
    return path


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def convert(*args: str | Path) -> int:
    """Run ``recipe convert`` in this process."""
    return main(["convert", *map(str, args)])


def test_neuron_to_hugging_face_and_back_is_bit_equal(file: Path, model: BertForPreTraining, tmp_path: Path) -> None:
    """46 tensors there and back; transformers loads the intermediate folder."""
    assert convert(file, tmp_path / "hf", "--to", "hf", "--recipe", "bert_dp:tiny") == 0
    assert convert(tmp_path / "hf", tmp_path / "back", "--to", "neuron_bert") == 0
    last = next((tmp_path / "back").glob("ckpt_*.pt"))
    assert convert(last, tmp_path / "nvidia", "--to", "neuron_bert", "names=nvidia") == 0
    assert convert(tmp_path / "nvidia", tmp_path / "again", "--to", "neuron_bert") == 0
    loaded, info = BertForPreTraining.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values())
    assert same(loaded.state_dict(), model.state_dict())
    for name in ("back", "again"):
        tree = torch.load(tmp_path / name / last.name, weights_only=True)
        assert same(tree["model"], dict(model.state_dict()))


def test_the_model_is_known_by_its_shapes(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(file, tmp_path / "hf", "--to", "hf") == 0
    output = capsys.readouterr().out
    assert "bert_pretraining by the shapes of its tensors: size=custom, layers=2, hidden=64, heads=1" in output
    assert "and the model gives the same outputs with them" in output
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_attention_heads"] == 1


@pytest.mark.parametrize("kind", ["safetensors", "sharded", "bin", "old names", "no heads"])
def test_a_run_begins_with_hugging_faces_weights(tmp_path: Path, model: BertForPreTraining, kind: str) -> None:
    folder = tmp_path / "hf"
    saved = BertModel(bert_config()) if kind == "no heads" else model
    saved.save_pretrained(folder, max_shard_size="200KB" if kind == "sharded" else "5GB")
    if kind in ("bin", "old names"):
        (folder / "model.safetensors").unlink()
        names = {name: old(name) if kind == "old names" else name for name in model.state_dict()}
        torch.save({names[n]: t for n, t in model.state_dict().items()}, folder / "pytorch_model.bin")
    args = (f"train.init_from={folder}", "train.steps=1", "train.lr=0", "checkpoint=single")
    done = run_tiny("bert_dp", tmp_path / "run", *args)
    written = tmp_path / "run" / "checkpoints" / "step-1" / "checkpoint.pt"
    loaded = torch.load(written, weights_only=True)["model"]
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in saved.state_dict().items() if name in loaded)
    assert f"weights of {folder} (hf); optimizer, schedule and data begin anew" in done.text
    heads = "not in it, and drawn at random: cls.predictions.bias"
    assert (heads in done.text) == (kind == "no heads")


@pytest.mark.parametrize(
    ("changes", "args", "message"),
    [
        ({}, ("model.heads=2",), "  - model.heads: 4 in its config.json, 2 in this run"),
        ({}, ("model.intermediate=64",), "add: model.intermediate=256"),
        ({"layer_norm_eps": 1e-5}, (), "layer_norm_eps is 1e-05 and not 1e-12"),
        ({"tie_word_embeddings": False}, (), "tie_word_embeddings is False and not True"),
        ({"hidden_dropout_prob": 0.3, "initializer_range": 1.0}, (), ""),
        # The same sizes, given differently.
        ({}, ("model.size=bert-base-uncased",), ""),
    ],
)
def test_a_start_of_another_model_is_refused(
    tmp_path: Path, model: BertForPreTraining, changes: dict[str, Any], args: tuple[str, ...], message: str
) -> None:
    model.save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(config))
    sizes = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads"}
    sizes |= {"intermediate": "intermediate_size", "positions": "max_position_embeddings", "vocabulary": "vocab_size"}
    same = [f"model.{field}={config[key]}" for field, key in sizes.items()]
    problems = start_problems(resolve(load(), "bert_dp", [*same, *args, f"train.init_from={tmp_path / 'hf'}"]))
    assert (not problems) if not message else (len(problems) == 1 and message in problems[0])


def old(name: str) -> str:
    """The name in the first releases."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hidden_act": "relu"},
            "hf: config.json: a BERT that bert_pretraining cannot be: hidden_act is 'relu' and not 'gelu'",
        ),
        ({"vocab_size": None}, "config.json: lacks 'vocab_size', which every BERT's has"),
        ({"hidden_size": "wide"}, "hf: model.hidden: expected"),
        ({"model_type": "t5"}, "its config.json is of a model of type 't5', which no installed model is (such folders"),
    ],
)
def test_a_config_of_another_model(
    tmp_path: Path, model: BertForPreTraining, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    assert convert(tmp_path / "hf", tmp_path / "x", "--to", "dcp") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_both_phases_and_the_export(tmp_path: Path) -> None:
    """Phase 1, phase 2 from its weights, export; the loaded model has the loss that the run reported."""
    plain = "data.packed=false"
    short = (plain, "data.sequence=32", "data.max_predictions=5", "train.steps=4", "train.eval_every=0")
    run_tiny("bert_dp", tmp_path / "phase1", *short)
    rows = (plain, "train.steps=3", "train.micro_batch=8", f"train.init_from={tmp_path / 'phase1'}")
    phase2 = run_tiny("bert_dp", tmp_path / "phase2", *rows)
    assert f"weights of {tmp_path}/phase1/checkpoints/step-4 (dcp)" in phase2.text
    assert convert(tmp_path / "phase2", tmp_path / "hf", "--to", "hf", "--drop", "optimizer") == 0

    data = build_data(BertHdf5(packed=False, sequence=64, max_predictions=10, vocabulary=1000), context())
    batch = data.read("valid", 0, 8)
    batch = {name: values.long() for name, values in batch.items()}
    labels = torch.full_like(batch["input_ids"], -100)
    places, words = batch["masked_lm_positions"], batch["masked_lm_ids"]
    rows_of = torch.arange(8)[:, None].expand_as(places)[places > 0]
    labels[rows_of, places[places > 0]] = words[places > 0]
    model = BertForPreTraining.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        output = model(
            input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"],
            labels=labels, next_sentence_label=batch["next_sentence_labels"],
        )  # fmt: skip
    assert output.loss.item() == pytest.approx(phase2.rows[-1]["val_loss"], abs=1e-5)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    real = batch["input_ids"][0][batch["input_mask"][0] > 0]
    assert tokenizer.decode(real).startswith("[CLS]")
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[MASK]"]) == [0, 4]


def context() -> Run:
    settings = Train(eval_every=1)
    return Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=settings, cache=Path(os.environ.get("RECIPE_CACHE") or home()),
    )  # fmt: skip
