"""A run records its data, and refuses other data, another tokenizer or another order when it continues."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from recipe_core import (
    DataError,
    DataIdentity,
    Dataset,
    Part,
    PluginError,
    Recipe,
    Run,
    Train,
    Use,
    hookimpl,
)
from recipe_core.data.identity import TOKENIZER, differences, identity_of
from recipe_core.data.prepare.manifest import file_facts, manifest_text
from recipe_core.errors import CheckpointError, ConfigError, RecipeError
from recipe_core.hooks.specs import NoSettings
from recipe_core.hooks.specs.wrapper import DataWrapperSpec
from recipe_core.settings.job import Job, default_of, resolve
from recipe_core.testing import spawn, toy
from recipe_core.testing.toy_parts import build_data
from recipe_core.train.run import run
from recipe_core.train.start.check import begin_problems, data_problems


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The toy's vectors, scaled by the numbers in a file."""

    path: str = ""
    width: int = 6
    seed: int = 0
    left_out: tuple[int, ...] = ()


class Scaled:
    def __init__(self, config: Any, run: Run) -> None:
        self.samples = build_data(config, run)
        self.factor = sum(map(float, Path(config.path).read_text().split()))

    def read(self, split: str, start: int, count: int) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = self.samples.read(split, start, count)
        return {name: values * self.factor if values.is_floating_point() else values for name, values in batch.items()}


def build(config: Any, run: Run) -> Scaled:
    return Scaled(config, run)


def tokenizer(config: Lines) -> dict[str, str]:
    path = Path(config.path).with_suffix(".vocabulary")
    return {"pieces.txt": path.read_text()} if path.exists() else {}


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(
        name="lines", build=f"{__name__}:build", facts="recipe_core.testing.toy:data_facts", config=Lines,
        tokenizer=f"{__name__}:tokenizer",
    )  # fmt: skip


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    train = Train(steps=4, global_batch=4, micro_batch=2, lr=0.05, log_every=1, trackers=())
    yield Recipe(
        name="scaled", summary="", model=Use("toy_model"), data=Use("lines"), train=train, variants={"tiny": {}}
    )


def job(*words: str) -> Job:
    return resolve(toy.registry(sys.modules[__name__]), "scaled", words)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.write_text("1 2")
    path.with_suffix(".vocabulary").write_text("a b c")
    return path


@pytest.fixture
def begun(data: Path) -> Path:
    """A run that has taken two of four steps."""
    out = data.parent / "run"
    run(job(f"data.path={data}", "train.stop_after=2"), out)
    return out


def refused(data: Path, out: Path, *words: str) -> str:
    with pytest.raises(ConfigError) as error:
        run(job(f"data.path={data}", *words), out)
    return str(error.value)


def word(text: str) -> str:
    """The setting that a message names."""
    return text.rpartition(" ")[2]


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_the_same_data_goes_on_and_is_recorded_in_run_and_checkpoint(data: Path, begun: Path) -> None:
    recorded = yaml.safe_load((begun / "job.yaml").read_text())["identity"]
    assert recorded.keys() == {"content", "tokenizer"}
    assert yaml.safe_load((begun / "checkpoints" / "step-2" / "job.yaml").read_text())["identity"] == recorded
    assert (begun / TOKENIZER / "pieces.txt").read_text() == "a b c"
    assert run(job(f"data.path={data}"), begun)["step"] == 4
    assert yaml.safe_load((begun / "job.yaml").read_text())["identity"] == recorded


def test_other_bytes_of_the_same_size_are_refused(data: Path, begun: Path) -> None:
    before = (begun / "job.yaml").read_text()
    data.write_text("1 3")
    text = refused(data, begun)
    assert text.startswith(f"{begun} was trained on other data:\n  - the data: digest ")
    assert yaml.safe_load((begun / "job.yaml").read_text())["identity"] == yaml.safe_load(before)["identity"]
    assert len(losses(begun)) == 2
    assert begin_problems(job(f"data.path={data}"), 1, begun) == [text]  # and `recipe check` says so
    results = run(job(f"data.path={data}", word(text)), begun)
    assert results["step"] == 4
    assert results["accepted"] == [text.splitlines()[1].removeprefix("  - ")]
    assert json.loads((begun / "results.json").read_text())["accepted"] == results["accepted"]
    assert yaml.safe_load((begun / "job.yaml").read_text())["identity"]["accepted"] == results["accepted"]


def test_what_was_accepted_once_does_not_accept_the_next_difference(data: Path, begun: Path) -> None:
    data.write_text("1 3")
    first = word(refused(data, begun))
    run(job(f"data.path={data}", first, "train.stop_after=3"), begun)
    run(job(f"data.path={data}", first, "train.stop_after=3"), begun)  # the same line continues
    data.write_text("1 4")
    assert word(refused(data, begun, first)) != first


def test_another_tokenizer_is_refused(data: Path, begun: Path) -> None:
    data.with_suffix(".vocabulary").write_text("a b d")
    text = refused(data, begun)
    assert "\n  - the tokenizer: digest " in text
    assert "the data:" not in text
    run(job(f"data.path={data}", word(text)), begun)
    assert (begun / TOKENIZER / "pieces.txt").read_text() == "a b d"
    (former,) = begun.glob("tokenizer.*.former")
    assert (former / "pieces.txt").read_text() == "a b c"


def test_a_run_from_before_identities_were_recorded_goes_on(data: Path, begun: Path) -> None:
    path = begun / "job.yaml"
    path.write_text(path.read_text().partition("identity:")[0])
    shutil.rmtree(begun / TOKENIZER)
    run(job(f"data.path={data}", "train.stop_after=3"), begun)
    assert yaml.safe_load(path.read_text())["identity"].keys() == {"content", "tokenizer"}
    data.write_text("1 3")
    assert "was trained on other data" in refused(data, begun)


def test_a_setting_that_an_earlier_version_did_not_have_counts_at_its_default(data: Path, begun: Path) -> None:
    path = begun / "job.yaml"
    sections = yaml.safe_load(path.read_text())
    assert sections["data"].pop("left_out") == []
    path.write_text(yaml.safe_dump(sections))
    assert "holds another run: data.left_out was None and is [1]" in refused(data, begun, "data.left_out=1")
    assert run(job(f"data.path={data}"), begun)["step"] == 4


def test_so_does_one_of_a_dataset_in_a_mixture(data: Path) -> None:
    mixed = job("data=mixture", "data.parts.x.use=lines", f"data.parts.x.path={data}")
    assert default_of(mixed, "data.parts.x.width") == 6
    assert default_of(mixed, "data.parts.x.left_out") == []
    assert default_of(mixed, "data.parts.y.width") is None
    assert default_of(mixed, "data.weights.x") is None


def phased(config: Lines) -> DataIdentity:
    return DataIdentity(content="a", phases={8: DataIdentity(content="b")} if config.seed else {})


def test_where_samples_have_other_numbers_phases_belong_to_the_order() -> None:
    def record(seed: int, *wrappers: Part[Any]) -> Mapping[str, Any]:
        spec = Dataset(name="lines", build="", config=Lines, identity=f"{__name__}:phased")
        return identity_of(Part(spec, Lines(seed=seed), wrappers=wrappers)).record

    plain, two = {"content": "a"}, [{"at": 8, "content": "b"}]
    assert (record(0), record(1)) == (plain, {**plain, "phases": two})
    wrapper: Part[Any] = Part(DataWrapperSpec(name="few", build="", config=NoSettings), NoSettings())
    assert [record(seed, wrapper)["order"]["phases"] for seed in (0, 1)] == ["none", two]
    assert len(differences(record(0, wrapper), record(1, wrapper), consumed=0)) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("train.seed=5",), "train.seed: 1234 was recorded, now 5"),
        (("train.global_batch=2",), "train.global_batch: 4 was recorded, now 2"),
        (("data.seed=1",), "data.seed: 0 was recorded, now 1"),
    ],
)
def test_the_checkpoint_of_another_run_keeps_its_order(
    data: Path, begun: Path, words: tuple[str, ...], line: str
) -> None:
    other, resume = data.parent / "other", f"train.resume={begun}/checkpoints/step-2"
    text = refused(data, other, resume, *words)
    assert f"was trained on other data, or in another order:\n  - {line}\n" in text
    assert [text] == begin_problems(job(f"data.path={data}", resume, *words), 1, other)
    assert run(job(f"data.path={data}", resume, *words, word(text)), other)["step"] == 4


def test_the_checkpoint_of_another_run_on_data_that_was_moved(data: Path, begun: Path) -> None:
    moved = data.parent / "moved"
    shutil.copy(data, moved)
    shutil.copy(data.with_suffix(".vocabulary"), moved.with_suffix(".vocabulary"))
    text = refused(moved, data.parent / "other", f"train.resume={begun}/checkpoints/step-2")
    assert "data.path:" in text  # the dataset does not say what of its settings is the order
    data.write_text("1 3")
    assert "the data: digest" in refused(data, data.parent / "other", f"train.resume={begun}/checkpoints/step-2")


def test_the_checkpoint_of_another_run_that_has_taken_all_steps(data: Path, begun: Path) -> None:
    resume = f"train.resume={begun}/checkpoints/step-2"
    text = refused(data, data.parent / "other", resume, "train.steps=2")
    assert text.endswith("step-2 has taken 2 steps, and train.steps=2 asks for no more; raise train.steps")
    assert run(job(f"data.path={data}", resume, "train.steps=3"), data.parent / "other")["step"] == 3


def test_states_belong_to_their_optimizer(data: Path, begun: Path) -> None:
    text = refused(data, begun, "train.optimizer=lamb")
    assert "train.optimizer was 'adamw' and is 'lamb'" in text
    assert f"train.init_from={begun} begins with its weights" in text
    other, step = data.parent / "other", begun / "checkpoints" / "step-2"
    with pytest.raises(CheckpointError, match=f"states of the optimizer adamw, and this run has lamb; .*={step}$"):
        run(job(f"data.path={data}", f"train.resume={step}", "train.optimizer=lamb"), other)
    run(job(f"data.path={data}", f"train.init_from={begun}", "train.optimizer=lamb"), other)


def test_weights_keep_their_tokenizer(data: Path, begun: Path) -> None:
    data.write_text("5")
    init = f"train.init_from={begun}"
    run(job(f"data.path={data}", init), data.parent / "one")  # other data is what it is for
    data.with_suffix(".vocabulary").write_text("a b d")
    text = refused(data, data.parent / "two", init)
    assert "was trained with another tokenizer" in text
    run(job(f"data.path={data}", init, word(text)), data.parent / "two")


def test_check_looks_at_the_manifest(data: Path) -> None:
    assert data_problems(job(f"data.path={data}")) == []
    manifest = data.with_name("manifest.json")
    manifest.write_text(manifest_text({"files": file_facts(data.parent, [data.name])}))
    data.write_text("1 2 3")
    (text,) = data_problems(job(f"data.path={data}"))
    assert text.startswith(f"{data}: has 5 bytes instead of 3")
    with pytest.raises(DataError, match="has 5 bytes instead of 3"):
        run(job(f"data.path={data}"), data.parent / "run")


def test_a_plugin_that_returns_something_else_is_named(data: Path) -> None:
    wrong = replace(job(f"data.path={data}").data.spec, identity=f"{__name__}:tokenizer")
    with pytest.raises(PluginError, match=r"dataset 'lines': '.*:tokenizer' returned .*; expected a DataIdentity"):
        identity_of(Part(wrong, Lines(path=str(data))))


def on_rank(out: str, path: str) -> str:
    try:
        run(job(f"data.path={path}"), Path(out))
    except RecipeError as error:
        return str(error)
    return ""


def test_every_rank_refuses(data: Path, begun: Path) -> None:
    data.write_text("1 3")
    one, two = spawn(on_rank, 2, str(begun), str(data))
    assert one == two
    assert "was trained on other data" in one
