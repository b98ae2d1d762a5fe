"""Sources of a model, and messages about invalid ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.main import main
from recipe_core.testing import run_tiny
from recipe_xla import machine

pytestmark = pytest.mark.filterwarnings("default")
SHORT = ("train.stop_after=1", "train.steps=3", "data.max_length=32", "model.dropout=null", "train.eval_every=100")


@pytest.fixture(scope="module")
def phase1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of bert_dp."""
    return run_tiny("bert_dp", tmp_path_factory.mktemp("phase1") / "run", "train.steps=2", "train.eval_every=0").out


FORMATS: dict[str, tuple[str, ...]] = {
    "run": (), "dcp": (), "single": (), "hf": (), "nxd": ("tp=2",), "neuron_bert": (), "xser": ("tp=2",)
}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_a_checkpoint_of_every_format(fine_tune: Callable[..., Any], phase1: Path, tmp_path: Path, form: str) -> None:
    """The weights are bit-equal to the run's, and the tokenizer is the one of its data."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from recipe_core.testing.checkpoints import tensors

    source = phase1
    if form != "run":
        source = tmp_path / form
        assert main(["convert", str(phase1), str(source), "--to", form, "--drop", "optimizer", *FORMATS[form]]) == 0
    done = fine_tune(*SHORT, f"model.source={source}", "train.lr=0")
    assert done.code == 0, done.text
    folder = source if form == "hf" else done.out / "hf_saved_model"
    assert len(AutoTokenizer.from_pretrained(str(folder))) == 1000
    tuned = AutoModelForSequenceClassification.from_pretrained(str(done.out / "checkpoints" / "step-1")).state_dict()
    for name, tensor in tensors(phase1).items():
        inside = name.removeprefix("model.")
        if name.startswith("model.bert."):
            assert torch.equal(tuned[inside], tensor), name


def test_model_tokenizer_of_a_file_that_records_none(
    fine_tune: Callable[..., Any], phase1: Path, tmp_path: Path
) -> None:
    """The tokenizer of the recipe that describes the model is not assumed."""
    assert main(["convert", str(phase1), str(tmp_path / "script"), "--to", "neuron_bert"]) == 0
    (weights,) = (tmp_path / "script").glob("*.pt")
    weights = weights.rename(tmp_path / weights.name)  # alone in its folder, as a script leaves it
    pieces = (phase1 / "tokenizer" / "vocab.txt").read_text().split("\n")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join([*pieces[:8], pieces[9], pieces[8], *pieces[10:]]))
    shutil.copy(phase1 / "tokenizer" / "tokenizer_config.json", tmp_path / "bert")
    args = (f"model.source={weights}", "model.recipe=bert_dp:tiny", f"model.tokenizer={tmp_path / 'bert'}")
    done = fine_tune(*SHORT, *args)
    assert done.code == 0, done.text


def test_what_was_fine_tuned_can_be_fine_tuned(fine_tune: Callable[..., Any], bert: Path, tmp_path: Path) -> None:
    args = ("data.max_length=32", f"model.source={bert}", "model.dropout=null", "train.steps=2")
    assert fine_tune(*args, out=tmp_path / "first").code == 0
    again = fine_tune(*SHORT, f"model.source={tmp_path / 'first'}", out=tmp_path / "second")
    assert again.code == 0, again.text


def changed(source: Path, target: Path, change: Callable[[Path], Any]) -> Path:
    shutil.copytree(source, target)
    change(target)
    return target


def with_a_large_vocabulary(folder: Path) -> None:
    with (folder / "vocab.txt").open("a") as file:
        file.writelines(f"word{number}\n" for number in range(300))


def without_pieces(folder: Path) -> None:
    (folder / "vocab.txt").write_text("")


def with_an_id_beyond_memory(folder: Path) -> None:
    (folder / "vocab.json").write_text('{"a": 4278124286}')
    (folder / "merges.txt").write_text("#version: 0.2\n")


def test_mistakes_of_folders(fine_tune: Callable[..., Any], bert: Path, tmp_path: Path) -> None:
    """Each is one message and exit code 2."""
    cases: list[tuple[Callable[[Path], Any], tuple[str, ...], str]] = [
        (with_a_large_vocabulary, (), "model.tokenizer: gives token ids up to"),
        (lambda p: (p / "config.json").unlink(), (), "does not say which model it holds"),
        (lambda p: (p / "vocab.txt").unlink(), (), "holds no tokenizer (vocab.txt, tokenizer.json)"),
        (without_pieces, (), "cannot make tokens of the texts (WordPiece error: Missing [UNK] token"),
        (with_an_id_beyond_memory, (), "(the id 4,278,124,286 of a token; expected at most 16,777,215)"),
        (lambda p: (p / "config.json").write_text("{"), (), "config.json: cannot be read as JSON"),
        (lambda p: (p / "model.safetensors").write_bytes(b"12345678901"), (), "its weights cannot be loaded"),
        (lambda p: None, ("data.max_length=65",), "data.max_length: samples have up to 65 tokens, and the model in"),
    ]
    for number, (change, args, message) in enumerate(cases):
        place = changed(bert, tmp_path / str(number), change)
        done = fine_tune(*SHORT, f"model.source={place}", *args, out=tmp_path / f"run{number}")
        assert done.code == 2, done.text
        assert message in done.text, done.text
        assert str(place) in done.text
        assert done.text.count("recipe run: ") == 1
        assert "Traceback" not in done.text


def test_a_name_of_the_hub_while_offline(fine_tune: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    done = fine_tune(*SHORT, "model.source=nobody/no-such-model-here")
    assert done.code == 2
    assert "model.source: nobody/no-such-model-here: no model can be had" in done.text
    assert "copy the model's files there first" in done.text


@pytest.mark.parametrize(
    ("args", "messages"),
    [
        (("model.source=/none/at/all",), ("/none/at/all: there is no such file or folder",)),
        (("model.source=recipe:bert",), ("no recipe named 'bert'", "pip install recipe-bert", "model.source=null")),
        (("layout=tp", "layout.tp=1"), ("layout: the Trainer of this recipe is data parallel",)),
        (("checkpoint=dcp", "train.optimizer=lamb"), ("checkpoint: the Trainer saves", "train.optimizer: the Trainer")),
        (("train.min_lr=1e-6", "train.schedule=polynomial"), ("train.min_lr", "train.schedule: expected constant")),
        (("train.epochs=0", "train.seeds=0"), ("train.seeds: expected at least 1", "epochs: expected more than 0")),
    ],
)  # fmt: skip
def test_mistakes_of_settings(fine_tune: Callable[..., Any], args: tuple[str, ...], messages: tuple[str, ...]) -> None:
    done = fine_tune(*args)
    assert done.code == 2
    for message in messages:
        assert message in done.text, done.text
    assert done.text.count("recipe run: ") == 1
    assert not done.out.exists()


def test_seeds_and_random_start(fine_tune: Callable[..., Any], bert: Path, folder: Path, tmp_path: Path) -> None:
    """Two seeds, from trained and from random weights: four fine-tunings."""
    args = (
        f"model.source={bert}", f"data.folder={folder}", "data.max_length=24", "model.dropout=null", "train.steps=3",
        "train.seeds=2", "train.random_start=true", "train.eval_every=0",
    )  # fmt: skip
    (folder / "test.tsv").write_text("sentence1\tsentence2\nthe man reads\tthe book\na dog\ta fire\n")
    done = fine_tune(*args, out=tmp_path / "run")
    assert done.code == 0, done.text
    rows = [line.split("\t") for line in (done.out / "predictions-test.tsv").read_text().splitlines()]
    assert [fields[:1] + fields[3:] for fields in rows[1:]] == [
        ["0", "", "the man reads", "the book"], ["1", "", "a dog", "a fire"]
    ]  # fmt: skip
    results = done.results
    assert [(seed_run["seed"], seed_run["random_start"]) for seed_run in results["legs"]] == [
        (1234, False), (1235, False), (1234, True), (1235, True)
    ]  # fmt: skip
    values = [seed_run["metrics"]["accuracy"] for seed_run in results["legs"][:2]]
    assert results["over_seeds"]["accuracy"]["mean"] == pytest.approx(sum(values) / 2)
    assert results["over_seeds"]["accuracy"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert len(results["random_start"]["f1"]["values"]) == 2
    for name in ("confusion.png", "learning-curve.png"):
        assert (done.out / name).read_bytes().startswith(b"\x89PNG")
    first = [row["loss"] for row in done.rows if "loss" in row]
    alone = fine_tune(*args[:-3], "train.seed=1235", "train.eval_every=0", out=tmp_path / "alone")
    second = [json.loads(line) for line in (done.out / "seed-1235" / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in second] == [row["loss"] for row in alone.rows] != first


def test_what_xla_cannot_do(fine_tune: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported before anything starts, as is a variable that would make the Trainer use XLA by itself."""
    monkeypatch.setattr(machine, "find_spec", lambda name: name)  # as where torch_xla is installed
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("USE_TORCH_XLA", "1")
    args = ("train.engine=xla", "data.pad_to_max_length=false", "train.activation_checkpointing=true")
    done = fine_tune(*args)
    assert done.code == 2
    assert "USE_TORCH_XLA: 1, and train.engine says what this recipe trains on: unset it" in done.text
    assert "data.pad_to_max_length: false, and train.engine=xla would compile a graph for each length" in done.text
    assert "train.activation_checkpointing: the Trainer cannot recompute with train.engine=xla" in done.text
    assert not done.out.exists()
    monkeypatch.delenv("USE_TORCH_XLA")
    done = fine_tune("data.pad_to_max_length=null", *args[::2])
    assert "train.activation_checkpointing" in done.text
    assert "pad_to_max_length" not in done.text
