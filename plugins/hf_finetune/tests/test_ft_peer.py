"""Results equal to the last digit to those of a plain script around the Trainer, like transformers' run_glue.py."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.files import home
from recipe_core.testing.checkpoints import convert
from recipe_core.train.start.pretrained import trained

pytestmark = pytest.mark.filterwarnings("default")

SCRIPT = """
import csv, json, sys
import numpy, torch
from transformers import (
    AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction, Trainer, TrainingArguments,
    default_data_collator, set_seed,
)

given = json.loads(sys.argv[1])


def read(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\\t", quoting=csv.QUOTE_NONE))


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        encoded = tokenizer([row[given["one"]] for row in rows], [row[given["two"]] for row in rows],
                            padding="max_length", max_length=given["max_length"], truncation=True)
        self.rows = [{**{key: encoded[key][i] for key in encoded}, "label": int(row[given["label"]])}
                     for i, row in enumerate(rows)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def metrics(found: EvalPrediction):
    said = numpy.argmax(found.predictions, axis=1)
    hits = int(((said == 1) & (found.label_ids == 1)).sum())
    return {"accuracy": float((said == found.label_ids).mean()),
            "f1": 2 * hits / max(1, int((said == 1).sum() + (found.label_ids == 1).sum()))}


arguments = TrainingArguments(
    output_dir=given["out"], use_cpu=True, seed=given["seed"], num_train_epochs=given["epochs"],
    per_device_train_batch_size=given["batch"], per_device_eval_batch_size=given["batch"], learning_rate=given["lr"],
    gradient_accumulation_steps=given.get("accumulate", 1), max_grad_norm=1.0, optim="adamw_torch", report_to="none",
    save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
)
set_seed(given["seed"])
config = AutoConfig.from_pretrained(given["model"], num_labels=2)
tokenizer = AutoTokenizer.from_pretrained(given["model"])
model = AutoModelForSequenceClassification.from_pretrained(given["model"], config=config)
if given.get("adapters"):
    import peft

    model = peft.PeftModel.from_pretrained(model, given["adapters"], is_trainable=True)
if given.get("accumulate", 1) > 1:
    model.accepts_loss_kwargs = False  # or the Trainer minimises so many times the loss


class Recording(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        answer = super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        if model.training:
            losses.append(float(answer[0] if return_outputs else answer))
        return answer


losses = []
train, dev = Rows(read(given["train"])), Rows(read(given["validation"]))
trainer = Recording(model=model, args=arguments, train_dataset=train, eval_dataset=dev, compute_metrics=metrics,
                    processing_class=tokenizer, data_collator=default_data_collator)
trainer.train()
found = trainer.evaluate()
logits = trainer.predict(dev).predictions
if given.get("adapters"):
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    model.merge_and_unload().save_pretrained(given["merged"])
else:
    trained = None
results = {"losses": losses, "trained": trained, "steps": trainer.state.global_step,
           "accuracy": found["eval_accuracy"], "f1": found["eval_f1"],
           "said": numpy.argmax(logits, axis=1).tolist(), "logits": logits.astype(float).tolist()}
json.dump(results, open(given["result"], "w"))
"""


def plain_script(folder: Path, **given: Any) -> dict[str, Any]:
    result = folder / "script.json"
    (folder / "script.py").write_text(SCRIPT)
    args = json.dumps({**given, "out": str(folder / "script"), "result": str(result)})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "USE_TORCH_XLA": "0"}
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), args], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(result.read_text())
    return results


def predictions(out: Path) -> list[dict[str, str]]:
    with (out / "predictions-validation.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def equal(done: Any, script: dict[str, Any], names: tuple[str, str]) -> None:
    import numpy as np

    assert done.results["step"] == script["steps"]
    assert (done.results["accuracy"], done.results["f1"]) == (script["accuracy"], script["f1"])
    rows = predictions(done.out)
    assert [names.index(row["predicted"]) for row in rows] == script["said"]
    shares = np.exp(np.array(script["logits"]))
    best = (shares / shares.sum(1, keepdims=True)).max(1)
    assert [row["probability"] for row in rows] == [f"{value:.6f}" for value in best]


def test_equal_to_the_digit(fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path) -> None:
    """With dropout, several micro batches per step, fewer in the last step, and evaluations in between."""
    out = tmp_path / "ours"
    done = fine_tune(
        f"model.source={bert}", f"data.folder={folder}", "data.task=mrpc", "data.max_length=24", "model.dropout=null",
        "train.epochs=3", "train.batch_per_process=4", "train.micro_batch=2", "train.lr=1e-3", "train.seed=11",
        "train.eval_every=2", "train.eval_samples=1000", out=out,
    )  # fmt: skip
    assert done.code == 0, done.text
    script = plain_script(
        tmp_path, model=str(bert), train=str(folder / "train.tsv"), validation=str(folder / "validation.tsv"), seed=11,
        epochs=3, batch=2, accumulate=2, lr=1e-3, max_length=24, one="sentence1", two="sentence2", label="label",
    )  # fmt: skip
    equal(done, script, ("not_equivalent", "equivalent"))


@pytest.mark.peer
def test_adapters_train_and_merge_as_in_peft(
    fine_tune: Callable[..., Any], folder: Path, bert: Path, tmp_path: Path
) -> None:
    """Both begin with the same adapters, see the same samples, and drop the same values; the head is trained, too."""
    pytest.importorskip("peft")
    from safetensors.torch import load_file

    args = (
        f"model.source={bert}", f"data.folder={folder}", "data.task=mrpc", "data.max_length=24", "model.dropout=null",
        "train.epochs=2", "train.batch_per_process=4", "train.micro_batch=4", "train.seed=11", "train.eval_every=0",
        "transforms=lora", "transform.lora.rank=4", "transform.lora.alpha=6", "train.log_every=1",
    )  # fmt: skip
    first = fine_tune(*args, "train.lr=0", "train.stop_after=1", out=tmp_path / "first")
    assert first.code == 0, first.text
    assert convert(tmp_path / "first", tmp_path / "adapters", "--to", "peft") == 0
    done = fine_tune(*args, "train.lr=1e-2", out=tmp_path / "ours")
    assert done.code == 0, done.text
    script = plain_script(
        tmp_path, model=str(bert), train=str(folder / "train.tsv"), validation=str(folder / "validation.tsv"), seed=11,
        epochs=2, batch=4, lr=1e-2, max_length=24, one="sentence1", two="sentence2", label="label",
        adapters=str(tmp_path / "adapters"), merged=str(tmp_path / "merged"),
    )  # fmt: skip
    losses = [row["loss"] for row in done.rows if "loss" in row]
    assert losses == pytest.approx(script["losses"], abs=1e-6)
    assert f", {script['trained']:,} of them trained (lora), " in done.text
    assert max(losses) > min(losses) + 0.01
    ours, theirs = (
        load_file(path / "model.safetensors") for path in (tmp_path / "ours" / "model", tmp_path / "merged")
    )
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - tensor).abs().max()) for name, tensor in theirs.items()) <= 1e-6
    begun = load_file(bert / "model.safetensors")
    assert any(not tensor.equal(begun[name]) for name, tensor in ours.items() if name in begun)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_equal_on_mrpc(fine_tune: Callable[..., Any], data: Path, tmp_path: Path) -> None:
    """Microsoft's files, and the BERT that ``recipe run bert_dp`` trains; on two processes within noise."""
    source = trained("bert_dp", home(), lambda: None)
    out, mrpc = tmp_path / "ours", data / "mrpc"
    args = (
        f"model.source={source}", f"data.folder={mrpc}", "data.task=mrpc", "data.max_length=64", "train.seed=3",
        "train.epochs=1", "train.batch_per_process=8", "train.micro_batch=8", "train.lr=3e-4", "model.dropout=0.1",
        "train.eval_samples=10000", "train.eval_every=0", "train.log_every=50",
    )  # fmt: skip
    done = fine_tune(*args, out=out)
    assert done.code == 0, done.text
    path = out / "hf_saved_model" / "config.json"
    config = {**json.loads(path.read_text()), "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    path.write_text(json.dumps(config))
    script = plain_script(
        tmp_path, model=str(out / "hf_saved_model"), train=str(mrpc / "msr_paraphrase_train.txt"),
        validation=str(mrpc / "msr_paraphrase_test.txt"), seed=3, epochs=1, batch=8, lr=3e-4, max_length=64,
        one="#1 String", two="#2 String", label="Quality",
    )  # fmt: skip
    equal(done, script, ("not_equivalent", "equivalent"))
    two = fine_tune(*args, "--processes", "2", out=tmp_path / "two")
    assert (done.results["steps"], two.results["steps"]) == (510, 255)  # 4,076 samples by 8, and by 16
    assert two.results["accuracy"] == pytest.approx(done.results["accuracy"], abs=0.05)
