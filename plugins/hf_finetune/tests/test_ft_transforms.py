"""Adapters and frozen parameters on models of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from recipe_core import ConfigError, Part, TransformSpec
from recipe_core.cli.main import main
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import Structure
from recipe_core.testing.checkpoints import convert
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.start.check import checked_job
from recipe_hf_finetune.model.adapted import adapt

pytestmark = pytest.mark.filterwarnings("default")
TIMES = ("seconds", "samples_per_second", "sequences_per_second", "peak_memory")
ARGS = (
    "data.task=mrpc", "data.max_length=24", "model.dropout=0.1", "train.epochs=2", "train.batch_per_process=4",
    "train.micro_batch=2", "train.lr=1e-2", "train.eval_every=0", "train.log_every=1", "train.save_every=7",
)  # fmt: skip
LORA = ("transforms=lora", "transform.lora.rank=2", "transform.lora.alpha=6", "transform.lora.dropout=0.1")


@pytest.fixture
def args(folder: Path, bert: Path) -> tuple[str, ...]:
    return (*ARGS, f"model.source={bert}", f"data.folder={folder}")


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def last(out: Path) -> Path:
    return max((out / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step-")))


def merged(trained: dict[str, Tensor]) -> dict[str, Tensor]:
    plain = {name: tensor for name, tensor in trained.items() if "lora_" not in name}
    for name in [name for name in trained if name.endswith("lora_a")]:
        layer = name.removesuffix(".lora_a")
        plain[f"{layer}.weight"] = trained[f"{layer}.weight"] + 3.0 * (trained[f"{layer}.lora_b"] @ trained[name])
    return plain


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def figures(out: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMES} for row in read_rows(out / "metrics.jsonl")]


def test_a_run_with_adapters_ends_with_merged_weights(
    fine_tune: Callable[..., Any], args: tuple[str, ...], bert: Path, tmp_path: Path
) -> None:
    """In the folder ``model`` as from ``recipe convert``; the head was trained in full, all else is as it was."""
    done = fine_tune(*args, *LORA)
    assert done.code == 0, done.text
    trained, begun = weights(last(done.out)), weights(bert)
    added = {name for name in trained if "lora_" in name}
    assert len(added) == 2 * (2 * 6 + 1)  # six layers in each of two blocks, and the pooler
    assert all(torch.equal(tensor, trained[name]) for name, tensor in begun.items() if name in trained)
    assert all(trained[name].any() for name in added)
    size = sum(trained[name].numel() for name in (*added, "classifier.weight", "classifier.bias"))
    assert f"M parameters, {size:,} of them trained (lora), " in done.text
    assert equal(weights(done.out / "model"), merged(trained))
    assert convert(done.out, tmp_path / "hf", "--to", "hf") == 0
    assert equal(weights(tmp_path / "hf"), weights(done.out / "model"))
    _, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values())
    assert (tmp_path / "hf" / "vocab.txt").exists() or (tmp_path / "hf" / "tokenizer.json").exists()

    measured = tmp_path / "eval.json"
    assert main(["eval", str(done.out), str(tmp_path / "hf"), "--device", "cpu", "--json", str(measured)]) == 0
    adapted, plain = json.loads(measured.read_text())["results"]
    assert adapted["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    assert adapted["loss"] == pytest.approx(done.results["legs"][0]["metrics"]["loss"], abs=2e-5)  # in other batches
    assert adapted["accuracy"] == plain["accuracy"] == done.results["accuracy"]
    # Its checkpoint is merged, too, before another run begins with it.
    again = fine_tune(*args, "train.lr=0", f"model.source={last(done.out)}", out=tmp_path / "again")
    assert again.code == 0, again.text
    assert equal(weights(tmp_path / "again" / "model"), weights(done.out / "model"))


def test_a_stopped_run_continues_to_the_bit(
    fine_tune: Callable[..., Any], args: tuple[str, ...], tmp_path: Path
) -> None:
    """Within an epoch, in the first and in the second of two fine-tunings, with dropout of adapters."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert fine_tune(*args, *LORA, "train.seeds=2", out=whole).code == 0
    assert fine_tune(*args, *LORA, "train.seeds=2", "train.stop_after=5", out=parts).code == 0
    assert "continuing after step 5" in fine_tune(*args, *LORA, "train.seeds=2", "train.stop_after=4", out=parts).text
    assert fine_tune(*args, *LORA, "train.seeds=2", out=parts).code == 0
    for name in (".", "seed-1235"):
        assert figures(parts / name) == figures(whole / name)
        assert equal(weights(last(parts / name)), weights(last(whole / name)))
        assert (last(parts / name) / "optimizer.pt").read_bytes() == (last(whole / name) / "optimizer.pt").read_bytes()
    adapter = "bert.encoder.layer.0.output.dense.lora_a"
    assert not torch.equal(weights(last(whole))[adapter], weights(last(whole / "seed-1235"))[adapter])
    assert equal(weights(parts / "model"), weights(whole / "model"))


def test_frozen_parameters_keep_their_values(fine_tune: Callable[..., Any], args: tuple[str, ...], bert: Path) -> None:
    frozen = "transform.freeze.modules=bert.embeddings,bert.encoder.layer.0"
    done = fine_tune(*args, "transforms=freeze", frozen, "train.activation_checkpointing=true")
    assert done.code == 0, done.text
    begun, ended = weights(bert), weights(done.out / "model")
    kept = {name for name, tensor in begun.items() if name in ended and torch.equal(tensor, ended[name])}
    assert kept == {name for name in ended if name.startswith(("bert.embeddings.", "bert.encoder.layer.0."))}


def test_two_processes_train_the_same_adapters(
    fine_tune: Callable[..., Any], args: tuple[str, ...], tmp_path: Path
) -> None:
    """With the same batch, and without dropout, which each process draws for itself."""
    same = (
        *args, *LORA, "transform.lora.dropout=0", "model.dropout=0", "train.batch_per_process=null",
        "train.global_batch=4", "train.epochs=null", "train.steps=4",
    )  # fmt: skip
    assert fine_tune(*same, out=tmp_path / "one").code == 0
    two = fine_tune(*same, "--processes", "2", "train.check_replicas_every=1", out=tmp_path / "two")
    assert two.code == 0, two.text
    losses = [[row["loss"] for row in figures(tmp_path / name) if "loss" in row] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    one, other = (weights(tmp_path / name / "model") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, atol=2e-4, rtol=0)


def test_facts_count_what_is_trained(bert: Path, folder: Path) -> None:
    words = [*ARGS, f"model.source={bert}", f"data.folder={folder}"]
    plain, adapted = (checked_job(load(), "hf_finetune:tiny", [*words, *more]).facts.model for more in ((), LORA))
    assert plain is not None
    assert adapted is not None
    assert adapted.frozen_parameters + 32 * 2 + 2 == plain.parameters
    layers = [(32, 32)] * 4 + [(32, 64), (64, 32)]
    assert adapted.parameters == 2 * (2 * sum(map(sum, layers)) + 32 + 32) + 32 * 2 + 2
    recipe = checked_job(load(), "hf_finetune", ["transforms=lora"]).facts.model
    assert recipe is not None
    assert 0 < recipe.parameters < recipe.frozen_parameters


def test_what_does_not_fit_is_refused_before_the_run(
    fine_tune: Callable[..., Any], args: tuple[str, ...], tmp_path: Path
) -> None:
    wrong = fine_tune(*args, *LORA, "transform.lora.trained=score")
    assert wrong.code == 2
    assert "transform.lora.trained: the model has no submodule or parameter 'score'" in wrong.text
    late = fine_tune(*LORA, "transform.lora.targets=qkv")  # of a model whose sizes are known to the run alone
    assert late.code == 2
    assert "transform.lora.targets: the model has no linear layer 'qkv'" in late.text
    done = fine_tune(*args, *LORA, out=tmp_path / "done")
    other = fine_tune(*args, *LORA, "transform.lora.alpha=3", f"train.resume={last(done.out)}", out=tmp_path / "other")
    assert other.code == 2
    assert "was trained with lora (" in other.text


def grow(config: object, module: nn.Module, structure: Structure) -> None:
    module.register_parameter("grown", nn.Parameter(torch.zeros(1)))


def test_weights_that_cannot_be_merged_are_refused_beside_those_that_can() -> None:
    lora = checked_job(load(), "hf_finetune:tiny", ["transforms=lora", "transform.lora.targets=*"]).transforms
    grown = Part(TransformSpec(name="grown", build=f"{__name__}:grow"), None)
    with pytest.raises(ConfigError, match=r"^train.transforms: grown adds weights and cannot merge them"):
        adapt((*lora, grown), nn.ModuleDict({"hidden": nn.Linear(2, 2), "classifier": nn.Linear(2, 2)}))
