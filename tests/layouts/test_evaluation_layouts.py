"""Evaluations measure the same under every layout, and training is the same to the bit with them and without."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipe_core import EvaluatedModel, EvaluationSpec, Generation, Likelihood, hookimpl
from recipe_core.hooks.registry import installed, load
from recipe_core.testing import spawn
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

LAYOUTS = {
    "single": (1, ["layout=single"]), "ddp": (2, ["layout=ddp"]), "zero1": (2, ["layout=zero1"]),
    "fsdp": (2, ["layout=fsdp"]), "tp": (2, ["layout=tp"]),
    "tp, sequence": (2, ["layout=tp", "layout.sequence_parallel=true"]), "pp": (2, ["layout=pp"]),
}  # fmt: skip
"""Processes and arguments of each."""
SAME = [
    "train.steps=3", "train.log_every=1", "train.lr=1e-3", "train.eval_every=2",
    "model.dropout=0", "model.attention_dropout=0",
    "train.eps=1e-3",  # or Adam turns rounding errors of the smallest gradients into updates
]  # fmt: skip
GPT = ["model.positions=32", "data.sequence=32"]
BERT = ["evaluations=outputs,held_out", "evaluation.held_out.split=train"]
TEXTS = ["a = b + c", "def f(x):\n    return x\n" * 6, ("import ", "os"), ("for i in ", "range(10):"), "x"]
CASES = {
    "gpt": ("megatron_gpt", [*GPT, "evaluations=probe,written"], [name for name in LAYOUTS if name != "pp"]),
    "gpt-pp": ("megatron_gpt", [*GPT, "evaluations=probe"], ["single", "pp"]),
    "bert": ("bert_dp", BERT, ["single", "ddp", "fsdp", "tp"]),
}  # fmt: skip
TRAINING = ("loss", "grad_norm", "val_loss", "consumed_samples")
pytestmark = pytest.mark.timeout(600)


def probe(config: object, model: EvaluatedModel) -> Callable[[], Mapping[str, float]]:
    """All that a language model gives: losses, outputs, log-likelihoods."""
    few = model.dataset(6, "train")

    def logits_of(batch: tuple[int, int]) -> float:
        samples = few.read(*batch)
        del samples["labels"]
        return float(model.forward(samples).float().logsumexp(-1).mean())

    def uneven(text: str | tuple[str, str]) -> int:
        # another number of forward passes for each item
        ids = model.scorer.encode(text if isinstance(text, str) else "".join(text))[:3]
        given = torch.tensor([ids], device=model.device)
        return sum(int(model.scorer.logits(given[:, : n + 1])[0, -1].argmax()) for n in range(len(ids)))

    def measure() -> dict[str, float]:
        torch.rand(3)
        found: list[Likelihood] = model.loglikelihoods(TEXTS)
        return {
            "valid": model.mean_loss(model.samples)["loss"],
            "train": model.mean_loss(few)["loss"],
            "logits": sum(model.map(logits_of, few.batches(), uniform=True)),
            "likelihood": sum(one.total for one in found) / sum(one.tokens for one in found),
            "likely": sum(model.map(uneven, TEXTS)),
        }

    return measure


def written(config: object, model: EvaluatedModel) -> Callable[[], Mapping[str, float]]:
    """Continuations of prompts."""

    def measure() -> dict[str, float]:
        answer = model.generator(Generation(tokens=4, temperature=0.0))
        answers: list[list[int]] = model.map(lambda prompt: answer(prompt)["ids"], ["def ", "a", "import os"])
        return {f"id_{number}": sum(ids) for number, ids in enumerate(answers)}

    return measure


def outputs(config: object, model: EvaluatedModel) -> Callable[[], Mapping[str, float]]:
    """The output of a BERT."""

    def first(batch: tuple[int, int]) -> float:
        return float(model.forward(model.samples.read(*batch))[0].float().mean())

    return lambda: {"masked": sum(model.map(first, model.samples.batches(), uniform=True))}


@hookimpl
def register_evaluations() -> Iterable[EvaluationSpec]:
    for name, takes in (("probe", ("loss", "score")), ("written", ("generate",)), ("outputs", ("loss",))):
        yield EvaluationSpec(name=name, build=f"{__name__}:{name}", takes=takes)


def runs(folder: str, recipe: str, words: Sequence[str], layouts: Mapping[str, Sequence[str]]) -> None:
    """Body of one process: each layout, with evaluations and without."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

    plugin: Any = SimpleNamespace(register_evaluations=register_evaluations)
    registry = load([*installed(), ("probes", lambda: plugin)])
    store, processes = os.environ.get("RECIPE_STORE"), int(os.environ["WORLD_SIZE"])
    cases = [(name, own, words) for name, own in layouts.items()]
    cases += [(f"{name}-without", own, [w for w in words if "evaluation" not in w]) for name, own in layouts.items()]
    for number, (name, own, some) in enumerate(cases):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        run(checked_job(registry, f"{recipe}:tiny", [*some, *SAME, *own], processes), Path(folder, name))
        _clear_sharding_prop_cache()  # or DTensor uses meshes of this run, whose groups are destroyed


def numbers(folder: Path) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if "/" in key} for row in read_rows(folder / METRICS)]


def training(folder: Path) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if key in TRAINING} for row in read_rows(folder / METRICS)]


@pytest.mark.parametrize("case", CASES)
def test_evaluations_under_every_layout(case: str, tmp_path: Path) -> None:
    recipe, words, names = CASES[case]
    for processes in (1, 2):
        layouts = {name: LAYOUTS[name][1] for name in names if LAYOUTS[name][0] == processes}
        spawn(runs, processes, str(tmp_path), recipe, words, layouts)
    alone = numbers(tmp_path / "single")
    assert [bool(row) for row in alone] == [True, False, True, True]
    for name in names:
        for row, expected in zip(numbers(tmp_path / name), alone, strict=True):
            assert row == pytest.approx(expected, rel=1e-5, abs=1e-5), name
        assert training(tmp_path / name) == training(tmp_path / f"{name}-without"), name
        assert equal(tensors(tmp_path / name), tensors(tmp_path / f"{name}-without")), name
