"""``recipe generate`` and ``recipe eval`` with a BERT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recipe_core.cli.main import main
from recipe_core.testing import run_tiny
from recipe_core.train.metrics.curves import METRICS, read_rows

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and its export."""
    folder = tmp_path_factory.mktemp("runs")
    run_tiny("bert_dp", folder / "run", "train.steps=4")
    assert main(["convert", str(folder / "run"), str(folder / "hf"), "--to", "hf", "--drop", "optimizer"]) == 0
    return folder


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str]) -> Typed:
    def type_it(*args: object) -> tuple[int, str, str]:
        code = main([*map(str, args)])
        return code, *capfd.readouterr()

    return type_it


def test_masks_are_filled_as_by_transformers(trained: Path, line: Typed) -> None:
    import transformers

    prompt = "The [MASK] returns a [MASK]."
    code, out, _ = line("generate", trained / "run", "--prompt", prompt, "--top-k", 3, "--json")
    assert code == 0
    answer = json.loads(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "hf")
    model = transformers.BertForPreTraining.from_pretrained(trained / "hf").eval()
    batch = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).prediction_logits[0][batch["input_ids"][0] == tokenizer.mask_token_id]
    wanted = logits.softmax(-1).topk(3)
    for row, values, ids in zip(answer["masks"], wanted.values, wanted.indices, strict=True):
        assert [entry["token"] for entry in row] == tokenizer.convert_ids_to_tokens(ids)
        assert [entry["probability"] for entry in row] == pytest.approx(values.tolist(), abs=1e-6)
    first, second = (row[0]["token"] for row in answer["masks"])
    assert answer["text"].replace(" ", "") == f"The{first}returnsa{second}.".replace("##", "")
    assert line("generate", trained / "hf", "--prompt", prompt, "--top-k", 3, "--json")[1] == out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prompt", "no mask"], "the prompt 'no mask' has no [MASK], which this model fills"),
        (["--prompt", "[MASK] " + "word " * 600], "and the model"),
        (["--prompt", "[MASK]", "--temperature", "1"], "--temperature: model 'bert_pretraining' has no use for it"),
        (["--prompt", "[MASK]", "--tokenizer", "gone.txt"], "--tokenizer: gone.txt: cannot be read"),
    ],
)
def test_mistakes(trained: Path, line: Typed, args: list[str], message: str) -> None:
    code, out, err = line("generate", trained / "run", *args)
    assert (code, out) == (2, "")
    assert message in err


def test_eval_repeats_the_validation_of_the_run(trained: Path, line: Typed, tmp_path: Path) -> None:
    assert line("eval", trained / "run", "--json", tmp_path / "out.json")[0] == 0
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
    wanted = [row for row in read_rows(trained / "run" / METRICS) if "val_loss" in row][-1]
    names = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
    assert [result[name] for name in names] == pytest.approx([wanted[f"val_{name}"] for name in names], abs=1e-5)
