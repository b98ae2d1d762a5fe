"""Transforms of a run: their settings, their mistakes, and checkpoints of runs with others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from recipe_core import Recipe, Use, hookimpl
from recipe_core.errors import CheckpointError, ConfigError, RecipeError
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import toy
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.run import run
from recipe_core.train.start.check import begin_problems, checked_job

LORA = ("transforms=lora", "transform.lora.rank=2")
FREEZE = ("transforms=freeze", "transform.freeze.modules=layers.0")


def job(*words: str) -> Job:
    return resolve(toy.registry(), "toy", ["train.device=cpu", "train.steps=4", "train.eval_every=0", *words])


def train(out: Path, *words: str) -> Path:
    run(job(*words), out)
    return out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("transforms=freeze", "transform.freeze.modules=layer.0"),
            "transform.freeze.modules: the model has no submodule or parameter 'layer.0'; did you mean 'layers.0'? "
            "(there are: layers, layers.0, layers.0.weight, layers.0.bias, layers.1, and 2 more)",
        ),
        (
            ("transforms=freeze", "transform.freeze.modules=layers"),
            "transform.freeze: it leaves no parameter of the model to train; choose others to freeze",
        ),
        (
            ("transforms=freeze",),
            "transform.freeze: modules: name the submodules to freeze, such as "
            "transform.freeze.modules=embeddings,blocks.0",
        ),
        (
            ("transforms=lora", "transform.lora.targets=query"),
            "transform.lora.targets: the model has no linear layer 'query' (there are: layers.0, layers.1)",
        ),
        (("transforms=lora", "transform.lora.rank=0"), "transform.lora.rank: expected at least 1, got 0"),
        (("transforms=lora", "transform.lora.dropout=1"), "transform.lora.dropout: expected 0 to below 1, got 1.0"),
        (("transforms=lora", "transform.lora.alpha=0"), "transform.lora.alpha: expected a number above 0, got 0.0"),
        (
            ("transform.lora.rank=4",),
            "transform.lora: this transform is not used; add it: train.transforms=lora",
        ),
        (
            ("transforms.lora.rank=4",),
            "transforms.lora: transforms lists names; write `transform.lora` for its settings",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_message_before_the_run(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked_job(toy.registry(), "toy", list(words))
    assert str(error.value) == text


def test_freeze_keeps_values_and_leaves_no_states(tmp_path: Path) -> None:
    train(tmp_path / "freeze", *FREEZE)
    train(tmp_path / "free", "train.stop_after=1", "train.lr=0")
    frozen, first = tensors(tmp_path / "freeze"), tensors(tmp_path / "free")
    for name in ("weight", "bias"):
        assert torch.equal(frozen[f"model.layers.0.{name}"], first[f"model.layers.0.{name}"])
        assert not torch.equal(frozen[f"model.layers.1.{name}"], first[f"model.layers.1.{name}"])
    assert {name.split(".")[3] for name in frozen if name.startswith("optimizer.")} == {"1"}
    train(tmp_path / "but", *FREEZE, "transform.freeze.trained=*.bias")
    assert not torch.equal(tensors(tmp_path / "but")["model.layers.0.bias"], first["model.layers.0.bias"])


def test_the_trained_count_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, *FREEZE)
    assert "toy: 0.00 M parameters, 18 of them trained (freeze), 4 steps" in capsys.readouterr().out


def test_a_run_folder_keeps_its_transforms(tmp_path: Path) -> None:
    train(tmp_path, *FREEZE, "train.stop_after=2")
    with pytest.raises(ConfigError) as error:
        train(tmp_path, *LORA)
    assert str(error.value) == (
        f"{tmp_path} holds another run: train.transforms was ['freeze'] and is ['lora']; transform.freeze.modules was "
        "['layers.0'] and is None; transform.freeze.trained was [] and is None; transform.lora.alpha was None and is "
        "16.0; transform.lora.dropout was None and is 0.0; transform.lora.rank was None and is 2; "
        "transform.lora.targets was None and is []; transform.lora.trained was None and is []. Give another --out "
        f"(train.init_from={tmp_path} begins with its weights), or the settings of {tmp_path}/job.yaml"
    )


def test_resume_refuses_other_transforms_in_one_sentence(tmp_path: Path) -> None:
    before = train(tmp_path / "before", *LORA, "train.stop_after=2")
    for words, now in (((), "none"), ((*LORA, "transform.lora.alpha=8"), "lora (rank=2, alpha=8.0, ")):
        other = job(f"train.resume={before}", *words)
        with pytest.raises(CheckpointError) as error:
            run(other, tmp_path / "after")
        assert "was trained with lora (rank=2, alpha=16.0, " in str(error.value)
        assert f"and this run has {now}" in str(error.value)
        assert [str(error.value)] == begin_problems(other, 1, tmp_path / "new")
    whole = train(tmp_path / "whole", *LORA)
    moved = train(tmp_path / "moved", *LORA, f"train.resume={before}")
    assert equal(tensors(moved), tensors(whole))


def test_a_checkpoint_of_the_model_alone_begins_a_run_with_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = train(tmp_path / "base")
    begun = train(tmp_path / "lora", *LORA, f"train.init_from={base}", "train.lr=0")
    assert "not in it, and drawn at random: layers.0.lora_a, layers.0.lora_b, layers.1" in capsys.readouterr().out
    before, after = tensors(base), tensors(begun)
    for name, tensor in before.items():
        if name.startswith("model."):
            assert torch.equal(after[name], tensor)
    assert after["model.layers.0.lora_a"].abs().max() > 0


def test_a_run_with_adapters_begins_others_with_or_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = train(tmp_path / "base", *LORA)
    learned = tensors(base)
    same = tensors(train(tmp_path / "same", *LORA, f"train.init_from={base}", "train.lr=0"))
    assert torch.equal(same["model.layers.0.lora_b"], learned["model.layers.0.lora_b"])
    capsys.readouterr()
    for words in ((), ("transforms=lora", "transform.lora.rank=3")):
        plain = tensors(train(tmp_path / f"plain{len(words)}", f"train.init_from={base}", "train.lr=0", *words))
        assert "merged into its weights: lora" in capsys.readouterr().out
        weight, a, b = (learned[f"model.layers.0.{name}"] for name in ("weight", "lora_a", "lora_b"))
        assert torch.equal(plain["model.layers.0.weight"], weight + 8.0 * (b @ a))
        assert ("model.layers.0.lora_b" in plain) == bool(words)


def test_settings_are_those_of_the_job() -> None:
    shown = job(*LORA)
    assert shown.as_dict()["transform"]["lora"]["rank"] == 2
    assert resolve(toy.registry(), shown.as_dict()) == shown
    with pytest.raises(RecipeError, match="no transform named 'lorra'; did you mean 'lora'"):
        job("transforms=lorra")


class OfItsOwn:
    """A recipe that trains in a loop of its own, with settings for the transforms that a run may have."""

    @hookimpl
    def register_recipes(self) -> Iterable[Recipe]:
        for name, applies in (("able", True), ("unable", False)):
            yield Recipe(
                name=name, summary="for tests", model=Use("toy_model"), data=Use("toy_data"),
                run="recipe_core.testing.toy:model_facts",
                transforms={"lora": {"trained": ("layers.1",)}}, applies_transforms=applies,
                variants={"tiny": {"train": {"steps": 2}}},
            )  # fmt: skip


def test_a_recipe_has_settings_for_transforms_that_are_used() -> None:
    registry = toy.registry(OfItsOwn())
    assert resolve(registry, "able").transforms == ()
    with pytest.raises(
        ConfigError, match=r"^transform.lora: this transform is not used; add it: train.transforms=lora$"
    ):
        resolve(registry, "able", ["transform.lora.rank=2"])
    for target in ("able", resolve(registry, "able", FREEZE).as_dict()):  # which lists another one
        (part,) = resolve(registry, target, LORA).transforms
        assert (part.config.rank, part.config.trained) == (2, ("layers.1",))


def test_a_loop_of_its_own_says_whether_it_applies_transforms() -> None:
    registry = toy.registry(OfItsOwn())
    assert checked_job(registry, "able", LORA).transforms
    with pytest.raises(
        ConfigError, match=r"^train.transforms: unable builds its model by itself, without transforms; "
    ):
        checked_job(registry, "unable", LORA)
