"""``recipe eval --tasks``: messages about tasks that cannot run. The metrics: test_tasks_peer.py of megatron_gpt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.cli.checkpoint import evaluate

Typed = Callable[..., tuple[int, str, str]]
TASK = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: nowhere.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: a
doc_to_target: b
"""


@pytest.fixture
def trained(typed: Typed) -> Typed:
    """A command line in a folder with the finished run ``run`` and some folders of tasks."""
    for name, text in {"good": TASK, "none": "a: 1\n", "twice": TASK, "broken": "task: [\n"}.items():
        Path(name).mkdir()
        Path(name, "a.yaml").write_text(text)
    Path("twice/b.yaml").write_text(TASK)
    assert typed("run", "toy", "--out", "run")[0] == 0
    return typed


def test_without_the_package(trained: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "find_spec", lambda name: None)
    code, _, err = trained("eval", "run", "--tasks", "good")
    assert (code, err.strip()) == (
        2,
        "recipe eval: --tasks: tasks need lm-evaluation-harness, which is not installed; "
        "pip install 'recipe-core[eval]'",
    )


def test_without_a_file(trained: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "find_spec", lambda name: name)
    code, _, err = trained("eval", "run", "--tasks", "nosuch", "--tasks", "good")
    assert (code, err.strip()) == (
        2,
        "recipe eval: --tasks: nosuch: there is no such evaluation (evaluations: held_out, text), and no such file "
        "or folder of tasks (.yaml)",
    )


@pytest.mark.peer
@pytest.mark.filterwarnings("default")  # of datasets and others
def test_a_model_that_takes_no_tasks(trained: Typed) -> None:
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: recipe-core[eval]")
    code, _, err = trained("eval", "run", "--tasks", "good")
    assert code == 2
    assert "model 'toy_model' takes no tasks: its plugin names no function for them (Model.score)" in err


@pytest.mark.peer
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("good", "good: lm-evaluation-harness ended with FileNotFoundError: Unable to find"),
        ("none", "none: holds no task; expected .yaml files of lm-evaluation-harness"),
        ("twice", "twice/b.yaml: is no YAML of a task, or its name is another task's, too"),
        ("broken", "broken/a.yaml: is no YAML of a task"),
        ("broken/a.yaml", "lm-evaluation-harness ended with ParserError"),
    ],
)
def test_tasks_that_cannot_be_run(trained: Typed, folder: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = pytest.importorskip("recipe_core.train.metrics.harness", reason="lm-evaluation-harness is not installed")
    monkeypatch.setattr(harness.Harness, "__init__", lambda self, trained, options: None)
    code, _, err = trained("eval", "run", "--tasks", folder)
    assert code == 2
    assert message in err
