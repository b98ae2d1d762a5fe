"""``recipe generate`` and ``recipe eval`` with a plugin's model."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recipe_core.cli.checkpoint.prompts import prompts
from recipe_core.errors import ConfigError
from recipe_core.testing import toy
from recipe_core.testing.toy_parts import Toy
from recipe_core.train.metrics.curves import METRICS, read_rows

VECTOR = "1 -2 0.5 0 3 -1"
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trained(typed: Typed) -> Typed:
    """A command line in a folder with the finished run ``run``."""
    assert typed("run", "toy", "--out", "run", "train.eval_samples=6")[0] == 0
    return typed


def test_the_plugin_answers_with_the_weights_of_the_checkpoint(trained: Typed) -> None:
    code, out, _ = trained("generate", "run", "--prompt", VECTOR, "--prompt", "1 1 1 1 1 1", "--json")
    first, second = map(json.loads, out.splitlines())
    module = Toy(toy.ToyModel()).eval()
    from recipe_core.checkpoint.formats.dcp import Dcp

    saved = Dcp().open(Path("run/checkpoints/step-8"))["model"]
    module.load_state_dict({name: tensor.read() for name, tensor in saved.items()})
    vectors = torch.tensor([[float(word) for word in VECTOR.split()], [1.0] * 6])
    assert code == 0
    assert first["prompt"] == VECTOR
    expected = module({"vectors": vectors}).softmax(-1).tolist()
    assert [first["probabilities"], second["probabilities"]] == [pytest.approx(row, abs=1e-6) for row in expected]


def test_prompts_come_from_a_file_or_a_pipe(trained: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lines.txt").write_text(f"{VECTOR}\n1 1 1 1 1 1\n")
    Path("lines.jsonl").write_text(json.dumps({"prompt": VECTOR}) + "\n" + json.dumps("1 1 1 1 1 1") + "\n")
    plain = trained("generate", "run", "--prompts", "lines.txt")
    assert plain[0] == 0
    assert plain == trained("generate", "run", "--prompts", "lines.jsonl")
    monkeypatch.setattr("sys.stdin", io.StringIO(Path("lines.txt").read_text().replace("\n", "\n\n")))
    assert plain == trained("generate", "run", "--prompt", "-")


def test_a_prompt_is_utf_8_whatever_the_locale() -> None:
    """Python gives halves of surrogate pairs for bytes that the locale's encoding does not have."""
    assert prompts(["caf\udcc3\udca9", "plain"], None) == (["café", "plain"], False)
    with pytest.raises(ConfigError, match=r"--prompt: expected a text in UTF-8, got 'caf\\udce9' "):
        prompts(["caf\udce9"], None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--prompt", "x"], "nowhere: there is no such file or folder"),
        (["run/job.yaml", "--prompt", "x"], "is a file of a run without weights; give the folder of the run: run"),
        (["run", "--prompt", ""], "--prompt: expected a prompt, got an empty one"),
        (["run", "--prompt", "1 2 x"], "expected 6 numbers, got '1 2 x'"),
        (["run", "--prompt", "1 2"], "toy_parts:generate' raised RuntimeError"),
        (["run", "--prompt", "x", "--top-k", "3"], "--top-k: model 'toy_model' has no use for it"),
        (["run", "--prompt", "x", "--tokens", "0", "--top-p", "nan"], "--top-p: expected more than 0 and at most 1"),
        (["run", "--prompt", "x", "--device", "nonsense"], "--device: 'nonsense' is not available here"),
        (["run", "--prompts", "gone.txt"], "--prompts: gone.txt: cannot be read"),
        (["run", "--prompts", "hole.txt"], "hole.txt, line 2: expected a prompt, got an empty one"),
        (["run", "--prompts", "bad.jsonl"], 'bad.jsonl, line 1: expected {"prompt": TEXT}, got 7'),
        (["damaged", "--prompt", VECTOR], "does not hold the bytes that were written"),
    ],
)
def test_a_mistake_is_one_message(trained: Typed, arguments: list[str], message: str) -> None:
    Path("hole.txt").write_text("a\n\nb\n")
    Path("bad.jsonl").write_text("7\n")
    Path("run/checkpoints/step-8").rename("damaged")
    largest = max(Path("damaged").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    if arguments[0] == "run":  # which needs an undamaged checkpoint
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
        Path("damaged").rename("run/checkpoints/step-8")
    code, out, err = trained("generate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_eval_gives_the_validation_of_the_run(trained: Typed) -> None:
    """The core evaluates a model without a function of its own; several checkpoints are rows of one table."""
    code, out, _ = trained("eval", "run", "run/checkpoints/step-8", "--batch", "4", "--json", "out.json")
    rows = json.loads(Path("out.json").read_text())["results"]
    expected = [row for row in read_rows(Path("run") / METRICS) if "val_loss" in row][-1]
    assert code == 0
    assert [row["step"] for row in rows] == [8, 8]
    assert len(out.splitlines()) == 3
    for row in rows:
        assert row["samples"] == 6
        assert row["loss"] == pytest.approx(expected["val_loss"], abs=1e-6)
        assert row["accuracy"] == pytest.approx(expected["val_accuracy"], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--data", "x"], "--data: dataset 'toy_data' has no setting `files`"),
        (["run", "--stride", "2"], "--stride: model 'toy_model' has no use for it"),
        (["run", "--batch", "0"], "--batch: expected at least 1, got 0"),
        (["run", "gone"], "gone: there is no such file or folder"),
    ],
)
def test_what_eval_cannot_do(trained: Typed, arguments: list[str], message: str) -> None:
    code, _, err = trained("eval", *arguments, "--json", "out.json")
    assert code == 2
    assert message in err
    assert not Path("out.json").exists()


def test_a_model_without_a_function_says_so(trained: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from recipe_core.hooks import registry

    load = registry.load

    def without(*arguments: object) -> object:
        plugins = load(*arguments)
        claim = plugins.registrations["model"]["toy_model"]
        plugins.registrations["model"]["toy_model"] = replace(claim, item=replace(claim.item, generate=""))
        return plugins

    monkeypatch.setattr(registry, "load", without)
    code, _, err = trained("generate", "run", "--prompt", VECTOR)
    assert code == 2
    assert "model 'toy_model' does not generate: its plugin names no function for it (Model.generate)" in err


def test_prompts_are_typed_on_a_terminal(trained: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter([VECTOR, "", "1 1 1 1 1 1"])

    def typed_line(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed_line)
    code, out, err = trained("generate", "run")
    assert code == 0
    assert [line in ("0", "1") for line in out.splitlines()] == [True, True]
    assert "Ctrl-D ends" in err


def test_a_damaged_newest_checkpoint_is_named(typed: Typed) -> None:
    assert typed("run", "toy", "--out", "run", "train.save_every=4")[0] == 0
    Path("run/checkpoints/step-8/job.yaml").unlink()
    code, out, err = typed("generate", "run", "--prompt", VECTOR)
    assert code == 0
    assert out.strip() in ("0", "1")
    assert "passed over: run/checkpoints/step-8" in err
