"""Wrappers and mixtures around the datasets of the recipes, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.cli.main import main

GPT = ("model.positions=32", "model.vocabulary=512")
PARTS = (
    "data=mixture", "data.parts.a.use=gpt_indexed", "data.parts.a.sequence=32", "data.parts.a.vocabulary=512",
    "data.parts.b.use=gpt_indexed", "data.parts.b.sequence=32", "data.parts.b.vocabulary=512", "data.weights.a=3",
)  # fmt: skip
BERT = ("use=bert_hdf5", "sequence=64", "max_predictions=10", "vocabulary=1000")
RECIPES = {
    "megatron_gpt:tiny": (
        *GPT, *PARTS, "wrappers=filtered", "wrapper.filtered.tensor=tokens", "wrapper.filtered.least=24",
        "wrapper.filtered.different=true",
    ),
    "bert_dp:tiny": (
        "data=mixture", *(f"data.parts.{name}.{word}" for name in ("a", "b") for word in BERT), "data.weights.b=2",
        "data.parts.b.wrappers=filtered", "wrapper.filtered.tensor=next_sentence_labels",
    ),
}  # fmt: skip


def losses(out: Path) -> list[float]:
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [row.get("loss", row.get("val_loss")) for row in rows]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipes_datasets_are_wrapped_as_they_are(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (recipe, *RECIPES[recipe], "train.device=cpu", "train.log_every=1", "train.trackers=")
    assert main(["check", *words]) == 0, capsys.readouterr()
    assert main(["run", *words, "--out", str(tmp_path / "whole")]) == 0, capsys.readouterr()
    for stop in ("train.stop_after=3", ""):
        assert main(["run", *filter(None, (*words, stop)), "--out", str(tmp_path / "halves")]) == 0
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")
    plain = [word for word in words if "wrapper" not in word]
    assert main(["run", *plain, "--out", str(tmp_path / "plain")]) == 0
    assert losses(tmp_path / "plain") != losses(tmp_path / "whole")
    capsys.readouterr()
    answer = tmp_path / "answer.json"
    code, shown = main(["eval", str(tmp_path / "whole"), "--json", str(answer)]), capsys.readouterr()
    if recipe == "bert_dp:tiny":  # which evaluates with the samples of training
        assert code == 0, shown
        last = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
        assert json.loads(answer.read_text())["results"][0]["loss"] == pytest.approx(last["val_loss"], rel=1e-6)
    else:
        assert (code, "it was trained on mixture, which has no text of its own; name some" in shown.err) == (2, True)


def test_layouts_read_the_same_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "megatron_gpt:tiny",
        *RECIPES["megatron_gpt:tiny"],
        "train.device=cpu",
        "train.log_every=1",
        "train.steps=3",
    )
    layouts = {"single": "1", "tp": "2", "fsdp": "2"}
    for layout, processes in layouts.items():
        run = ("run", *words, f"layout={layout}", "--processes", processes, "--out", str(tmp_path / layout))
        assert main(run) == 0, capsys.readouterr()
    for layout in layouts:
        assert losses(tmp_path / layout) == pytest.approx(losses(tmp_path / "single"), rel=1e-5)


def test_a_recipe_with_its_own_loop_takes_no_wrappers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "hf_finetune:tiny", "wrappers=filtered"]) == 2
    said = "data.wrappers: hf_finetune trains in a loop of its own, which reads without them; leave them out"
    assert said in capsys.readouterr().err
