"""``recipe eval --tasks`` beside lm-evaluation-harness' own model class on the export: equal metrics."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.main import main

WORDS = ("the", "function", "returns", "a", "string", "if", "it", "is", "called", "with", "an", "object", "and", "file")
DATA = """\
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl, train: data.jsonl}}
test_split: test
"""
TASKS = {
    "choice": "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_choice: choices\n"
    "doc_to_target: label\nmetric_list: [{metric: acc}, {metric: acc_norm}]\nnum_fewshot: 2\nfewshot_split: train\n",
    "text": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
    "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]\n",
    "last": "output_type: loglikelihood\ndoc_to_text: '{{question}}'\ndoc_to_target: the\n"
    "metric_list: [{metric: perplexity}, {metric: acc}]\n",
    "continue": "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{text}}'\n"
    "generation_kwargs: {until: ['.', '\\n'], max_gen_toks: 20}\n"
    "metric_list: [{metric: exact_match}, {metric: chrf}]\n",
}


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tasks of all kinds, and their data in the current folder."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    rows = [
        {
            "question": "This " + " ".join(draw.choices(WORDS, k=draw.randint(2, 12))),
            "choices": [" ".join(draw.choices(WORDS, k=draw.randint(1, 3))) for _ in range(3)],
            "label": draw.randrange(3),
            "text": " ".join(draw.choices(WORDS, k=draw.randint(5, 90))),
        }
        for _ in range(12)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{DATA}{text}")
    return folder


@pytest.mark.peer
@pytest.mark.filterwarnings("default")  # of datasets and others
def test_metrics_equal(tasks: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: recipe-core[eval]")
    transformers = pytest.importorskip("transformers")
    words = ["train.steps=4", "train.eval_every=0", "train.lr=1e-3", "model.init_std=0.3", "--out", "run"]
    assert main(["run", "megatron_gpt:tiny", *words]) == 0
    assert main(["eval", "run", "--tasks", str(tasks), "--json", "ours.json"]) == 0
    ours = {row["data"]: row for row in json.loads(Path("ours.json").read_text())["results"]}
    assert main(["convert", "run", "hf", "--to", "hf", "--drop", "optimizer"]) == 0

    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model = HFLM(
        transformers.GPT2LMHeadModel.from_pretrained("hf"),
        tokenizer=transformers.AutoTokenizer.from_pretrained("hf"),
        max_length=64, batch_size=4, device="cpu",
    )  # fmt: skip
    manager = TaskManager(include_path=tasks, include_defaults=False)
    theirs: Any = simple_evaluate(model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, log_samples=False)
    assert set(ours) == set(TASKS) == set(theirs["results"])
    for name, values in theirs["results"].items():
        metrics = {key.partition(",")[0]: value for key, value in values.items() if key.endswith(",none")}
        wanted = {key: value for key, value in metrics.items() if not key.endswith("_stderr")}
        assert {key: ours[name][key] for key in wanted} == pytest.approx(wanted, rel=1e-5)
        assert ours[name]["samples"] == 12
