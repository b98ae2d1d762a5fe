"""The model as Hugging Face's GPT-2: written, read back bit by bit, and the same logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from recipe_core.checkpoint.convert.outputs import same_outputs
from recipe_core.checkpoint.io.safetensors import read_tensors
from recipe_core.checkpoint.lazy import lazy
from recipe_core.cli.main import main
from recipe_core.errors import CheckpointError
from recipe_core.hooks.specs import Part
from recipe_core.testing import run_tiny
from recipe_core.testing.checkpoints import convert, tensors
from recipe_megatron_gpt.model.gpt import GptModel, build
from recipe_megatron_gpt.plugin import register_models
from recipe_megatron_gpt.settings import Gpt

SMALL = Gpt(layers=2, hidden=48, heads=3, positions=32, vocabulary=101, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def module() -> GptModel:
    """All its tensors differ, those that begin as zeros and ones too."""
    return filled(SMALL)


def filled(config: Gpt) -> GptModel:
    torch.manual_seed(4)
    module = build(config)[0]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.1)
    return module.eval()


def read(path: Path) -> dict[str, Tensor]:
    """The model's tensors by their names."""
    return {n.removeprefix("model."): t for n, t in tensors(path).items() if n.startswith("model.")}


def logits(module: GptModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return module({"tokens": tokens})


def tokens(vocabulary: int = 101) -> Tensor:
    return torch.randint(vocabulary, (2, 20), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("words", [(), ("shard_gb=0.00005",)])
def test_there_and_back_is_bit_equal(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The second time in several files with an index."""
    first = write_checkpoint(module)
    assert convert(first, tmp_path / "hf", "--to", "hf", *words) == 0
    assert (tmp_path / "hf" / "model.safetensors.index.json").is_file() == bool(words)
    (tmp_path / "hf" / "job.yaml").unlink()  # as anybody's: config.json alone says what it is
    (tmp_path / "hf" / "checkpoint.json").unlink()
    assert convert(tmp_path / "hf", tmp_path / "back", "--to", "dcp") == 0
    one, two = read(first), read(tmp_path / "back")
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    said = yaml.safe_load((tmp_path / "back" / "job.yaml").read_text())["model"]
    assert said == {"use": "gpt", **asdict(SMALL)}


def test_queries_keys_and_values_stand_where_gpt2_has_them(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """By the definition of both orders: ours by head, GPT-2's by kind."""
    assert convert(write_checkpoint(module), tmp_path / "hf", "--to", "hf") == 0
    theirs = read_tensors(tmp_path / "hf" / "model.safetensors")["transformer.h.1.attn.c_attn.weight"].read()
    ours, width = module.blocks[1].attention.qkv.weight.detach(), 48 // 3
    for head in range(3):
        for kind in range(3):
            rows = ours[(head * 3 + kind) * width :][:width]
            assert torch.equal(theirs[:, kind * 48 + head * width :][:, :width], rows.t())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"activation_function": "relu"},
            "a GPT-2 that gpt cannot be: activation_function is 'relu' and not 'gelu_new'",
        ),
        ({"n_inner": 100}, "a GPT-2 that gpt cannot be: n_inner is 100 and not 4 x 48"),
        ({"n_head": None}, "config.json: lacks 'n_head', which every GPT-2's has"),
        ({"model_type": "t5"}, "its config.json is of a model of type 't5', which no installed model is (such folders"),
    ],
)
def test_a_config_of_something_else(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert convert(write_checkpoint(module), tmp_path / "hf", "--to", "hf") == 0
    for name in ("job.yaml", "checkpoint.json"):
        (tmp_path / "hf" / name).unlink()
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None or key == "n_inner"}))
    assert convert(tmp_path / "hf", tmp_path / "x", "--to", "dcp") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.peer
def test_transformers_has_our_logits(module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert convert(write_checkpoint(module), tmp_path / "hf", "--to", "hf") == 0
    theirs, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values())
    with torch.no_grad():
        found = theirs.eval()(tokens()).logits
    torch.testing.assert_close(found, logits(module, tokens()), atol=1e-5, rtol=0)


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["safetensors", "sharded", "no head", "shapes"])
def test_what_transformers_wrote_is_read(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own weights, in one file or several, with and without the head, with and without config.json."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.GPT2Config(vocab_size=101, n_positions=32, n_embd=128, n_layer=2, n_head=2)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    saved = theirs.transformer if kind == "no head" else theirs
    saved.save_pretrained(tmp_path / "hf", max_shard_size="100KB" if kind == "sharded" else "5GB")
    if kind == "shapes":
        (tmp_path / "hf" / "config.json").unlink()
    assert convert(tmp_path / "hf", tmp_path / "ours", "--to", "dcp") == 0
    assert "gpt by " in capsys.readouterr().out
    module = filled(Gpt(layers=2, hidden=128, heads=2, positions=32, vocabulary=101)).eval()
    module.load_state_dict(read(tmp_path / "ours"))
    with torch.no_grad():
        expected = theirs(tokens()).logits
    torch.testing.assert_close(logits(module, tokens()), expected, atol=1e-5, rtol=0)


def test_a_run_is_exported_with_its_tokenizer(tmp_path: Path) -> None:
    """And begun from: its weights come back under our names."""
    first = run_tiny("megatron_gpt", tmp_path / "run", "train.steps=2")
    assert convert(tmp_path / "run", tmp_path / "hf", "--to", "hf", "--drop", "optimizer") == 0
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert "model" in json.loads((tmp_path / "hf" / "tokenizer.json").read_text())
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text()) == {**ends, "pad_token_id": 0}
    assert json.loads((tmp_path / "hf" / "config.json").read_text()).items() >= ends.items()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    card = (tmp_path / "hf" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n# megatron_gpt\n")
    assert f"| training loss | {results['loss']:.4f} |\n" in card
    assert f"| steps | {results['step']} of {results['steps']} |\n" in card
    assert "\nLicence: not stated. " in card
    words = (f"train.init_from={tmp_path / 'hf'}", "train.steps=1", "train.lr=0")
    second = run_tiny("megatron_gpt", tmp_path / "again", *words)
    assert first.rows
    assert f"weights of {tmp_path / 'hf'} (hf)" in second.text
    one, two = read(tmp_path / "run"), read(tmp_path / "again")
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        (
            {},
            ("model.heads=2",),
            "model.heads: 4 in its config.json, 2 in this run\nTo take them over, add: model.heads=4",
        ),
        ({}, ("model.hidden=320", "model.heads=5"), "add: model.hidden=64 model.heads=4"),
        ({"n_head": 5}, (), "hf: config.json: model.hidden: 64 does not divide into 5 heads"),
        ({"layer_norm_epsilon": 1e-6}, (), "layer_norm_epsilon is 1e-06 and not 1e-05"),
        ({"activation_function": "relu"}, (), "activation_function is 'relu' and not 'gelu_new'"),
        ({"model_type": "bert"}, (), "its config.json is of a model of type 'bert', which is not gpt"),
        (None, ("model.hidden=320", "model.heads=5"), "transformer.h.0.attn.c_attn.weight [64, 192]: of no such shape"),
    ],
)
def test_a_start_of_another_model_is_refused(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any] | None, words: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    """By check and by run, in the same words; without config.json by the shapes."""
    folder = tiny_of_hugging_face(write_checkpoint, tmp_path, changes)
    start = ("megatron_gpt:tiny", *words, f"train.init_from={folder}")
    told = []
    for line in (["check", *start], ["run", *start, "--out", str(tmp_path / "run")]):
        assert main(line) == 2
        told.append(capsys.readouterr().err.split(": ", 1)[1])
    assert told[0] == told[1]
    assert message in told[0]


def test_a_start_without_a_config_says_that_heads_were_not_compared(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_of_hugging_face(write_checkpoint, tmp_path, None)
    done = run_tiny("megatron_gpt", tmp_path / "run", f"train.init_from={folder}", "train.steps=1")
    assert f"{folder} does not record the settings of its model" in done.text


def tiny_of_hugging_face(write_checkpoint: Callable[..., Path], tmp_path: Path, changes: dict[str, Any] | None) -> Path:
    """A folder with the model of ``megatron_gpt:tiny``; None for ``changes``: without a config.json."""
    tiny = Gpt(layers=2, hidden=64, heads=4, positions=64, vocabulary=512, dropout=0.0, attention_dropout=0.0)
    assert convert(write_checkpoint(filled(tiny), "tiny"), tmp_path / "hf", "--to", "hf") == 0
    for name in ("job.yaml", "checkpoint.json"):
        (tmp_path / "hf" / name).unlink()
    path = tmp_path / "hf" / "config.json"
    if changes is None:
        path.unlink()
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return tmp_path / "hf"


def test_small_models_are_run_with_both_weights(module: GptModel) -> None:
    part = Part(next(iter(register_models())), SMALL)
    before = {name: lazy(tensor.detach()) for name, tensor in module.named_parameters()}
    assert same_outputs(part, before, dict(before))
    name = "blocks.1.mlp.down.bias"
    after = before | {name: lazy(before[name].read() + 0.01)}
    with pytest.raises(CheckpointError, match="the model 'gpt' computes something else"):
        same_outputs(part, before, after)
    assert not same_outputs(replace(part, spec=replace(part.spec, example="")), before, after)


@pytest.mark.peer
def test_the_exported_tokenizer_gives_the_runs_ids(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from recipe_megatron_gpt.settings import GptIndexed
    from recipe_megatron_gpt.tokenizer import files
    from recipe_megatron_gpt.tokenizer.text import encode

    data = GptIndexed(vocabulary=512)
    for name, text in files.files(data).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert found("Now is better than never.")["input_ids"] == encode(data, "Now is better than never.")
    assert found.eos_token_id == 0
