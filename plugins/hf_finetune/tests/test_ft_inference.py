"""``recipe generate`` and ``recipe eval`` with a fine-tuned classifier."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_core.testing import run_tiny

Typed = Callable[..., tuple[int, str, str]]
PAIR = "The cat sleeps.\tA cat is asleep."


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny variant."""
    out = tmp_path_factory.mktemp("runs") / "run"
    run_tiny("hf_finetune", out, "train.steps=4", "train.epochs=null")
    return out


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str]) -> Typed:
    def type_it(*args: object) -> tuple[int, str, str]:
        code = main([*map(str, args)])
        return code, *capfd.readouterr()

    return type_it


def test_labels_are_those_of_the_pipeline_of_transformers(trained: Path, line: Typed) -> None:
    import transformers

    code, out, _ = line("generate", trained, "--prompt", PAIR, "--json")
    assert code == 0
    answer = json.loads(out)
    pipe = transformers.pipeline("text-classification", str(trained / "model"), top_k=None, device="cpu")
    first, second = PAIR.split("\t")
    wanted = {entry["label"]: entry["score"] for entry in pipe([{"text": first, "text_pair": second}])[0]}
    assert answer["probabilities"] == pytest.approx(wanted, abs=1e-6)
    assert answer["label"] == max(wanted, key=lambda name: wanted[name])
    again = line("generate", trained / "model", "--recipe", "hf_finetune", "--prompt", PAIR, "--json")
    assert again[:2] == (0, out)


def test_eval_repeats_the_metrics_of_the_run(trained: Path, line: Typed, tmp_path: Path) -> None:
    samples = tmp_path / "own.tsv"
    samples.write_text("sentence1\tsentence2\tlabel\nA cat.\tA dog.\tdifferent\nIt is so.\tSo it is.\tequivalent\n")
    assert line("eval", trained, "--json", tmp_path / "out.json")[0] == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["results"]
    results = json.loads((trained / "results.json").read_text())
    assert row["loss"] == pytest.approx(results["val_loss"], abs=1e-5)
    assert row["accuracy"] == results["accuracy"]
    code, out, err = line("eval", trained, "--data", samples)
    assert code == 0, err
    assert out.splitlines()[1].split()[3] == "2"


def test_mistakes(trained: Path, line: Typed, tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tyes\nc\td\tno\n")
    one_text = line("generate", trained, "--prompt", "one text")
    option = line("generate", trained, "--prompt", PAIR, "--top-k", 2)
    labels = line("eval", trained, "--data", tmp_path / "other.tsv")
    assert [one_text[0], option[0], labels[0]] == [2, 2, 2]
    assert "this model takes two texts with a tab between them" in one_text[2]
    assert "--top-k: model 'sequence_classifier' has no use for it" in option[2]
    assert "other.tsv" in labels[2]
