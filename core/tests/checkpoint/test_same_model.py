"""A checkpoint of another model is refused by the settings that it records, also where every shape is the same."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from recipe_core import Model, hookimpl, plugin
from recipe_core.checkpoint.convert.convert import convert
from recipe_core.checkpoint.locate import Request, find
from recipe_core.checkpoint.match.same_model import UNRECORDED, require_same
from recipe_core.errors import CheckpointError, ConfigError, RecipeError
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.specs import Part
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.run import run
from recipe_core.train.start.check.parts import batch_problems
from recipe_core.train.start.preflight import problems


@dataclass(frozen=True, kw_only=True)
class Sloped(toy.ToyModel):
    """Settings that change no shape."""

    slope: float = 0.5
    kind: str = "relu"
    bands: tuple[int, ...] = (1, 2)
    named: dict[str, int] = field(default_factory=lambda: {"low": 1, "high": 2})
    seen: int | None = None


@hookimpl
def register_models() -> Iterable[Model]:
    """The toy's, with more settings; it names none that is free, and so all must agree."""
    for model in toy.register_models():
        yield replace(model, config=Sloped, free=("dropout", "named.low"))
        yield replace(model, name="twin", config=Sloped)


register_datasets, register_recipes = toy.register_datasets, toy.register_recipes


def registry() -> Registry:
    return load([("core", lambda: plugin), ("sloped", lambda: sys.modules[__name__])])


def job(*words: str) -> Job:
    return resolve(registry(), "toy:tiny", words)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    run(job("model.slope=0.25"), tmp_path / "first")
    return tmp_path / "first"


@pytest.mark.parametrize("setting", ["init_from", "resume"])
@pytest.mark.parametrize("form", ["dcp", "single"])
def test_all_settings_that_differ_are_named_with_what_takes_them_over(
    first: Path, tmp_path: Path, setting: str, form: str
) -> None:
    """Settings of every sort, in the run's own format and in another; the words that are printed do what they say."""
    words = ("model.kind='a b'", "model.bands=[3]", "model.named.high=7", "model.seen=4", f"checkpoint={form}")
    start = (f"train.{setting}={first}", "train.steps=5")
    with pytest.raises(CheckpointError) as refused:
        run(job(*words, *start), tmp_path / "second")
    assert str(refused.value).splitlines() == [
        f"train.{setting}: {first}/checkpoints/step-4 is of a model with other settings:",
        "  - model.slope: 0.25 in its job.yaml, 0.5 in this run",
        "  - model.kind: relu in its job.yaml, ''a b'' in this run",
        "  - model.bands: '[1, 2]' in its job.yaml, '[3]' in this run",
        "  - model.named.high: 2 in its job.yaml, 7 in this run",
        "  - model.seen: null in its job.yaml, 4 in this run",
        "To take them over, add: model.slope=0.25 model.kind=relu model.bands='[1, 2]' model.named.high=2 "
        "model.seen=null",
    ]
    assert problems(job(*words, *start), 1, None) == [str(refused.value)]
    taken = ("model.slope=0.25", "model.kind=relu", "model.bands=[1, 2]", "model.named.high=2", "model.seen=null")
    assert problems(job(*words, *taken, *start), 1, None) == []
    assert run(job(*words, *taken, *start), tmp_path / "second")["step"] == 5


@pytest.mark.parametrize("setting", ["init_from", "resume"])
def test_free_settings_may_differ(first: Path, tmp_path: Path, setting: str) -> None:
    free = ("model.slope=0.25", "model.dropout=0", "model.named.low=3", f"train.{setting}={first}", "train.steps=5")
    assert problems(job(*free), 1, None) == []
    assert run(job(*free), tmp_path / "second")["step"] == 5


def test_a_model_of_another_name_and_the_same_tensors(first: Path) -> None:
    start = ("model=twin", f"train.init_from={first}")
    (told,) = problems(job(*start), 1, None)
    lines = told.splitlines()
    assert lines[1:-1] == ["  - model: toy_model in its job.yaml, twin in this run"]
    assert lines[-1].startswith("To take them over, add: model=toy_model model.hidden=8 model.dropout=0.25 ")


@pytest.mark.parametrize("setting", ["init_from", "resume"])
def test_check_finds_shapes_too(first: Path, setting: str) -> None:
    """Where the settings are not recorded; names and shapes are read from the headers."""
    for step in (first / "checkpoints").iterdir():
        sections = yaml.safe_load((step / "job.yaml").read_text())
        del sections["model"]
        rewrite(step, yaml.safe_dump(sections))
    (told,) = problems(job("model.hidden=9", f"train.{setting}={first}"), 1, None)
    shapes = told.splitlines()
    assert f"train.{setting}: {first}/checkpoints/step-4 does not fit this run" in shapes[0]
    assert f"  - {'model.' if setting == 'resume' else ''}layers.0.weight: found [8, 6], expected [9, 6]" in [
        line.replace("float32 ", "") for line in shapes
    ]


def rewrite(step: Path, text: str) -> None:
    """Another job.yaml, and a manifest that knows of it."""
    from recipe_core.checkpoint import manifest as manifests

    (step / "job.yaml").write_text(text)
    old = manifests.Manifest.read(step)
    replace(old, files={**old.files, "job.yaml": manifests.measure(step / "job.yaml")}).write(step)


def test_what_records_nothing_is_told(first: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    convert(registry(), request(first, tmp_path / "one", "single"))
    for name in ("job.yaml", "checkpoint.json"):
        (tmp_path / "one" / name).unlink()
    assert run(job(f"train.init_from={tmp_path / 'one'}"), tmp_path / "second")["step"] == 4
    assert f"{tmp_path / 'one'} {UNRECORDED}" in capfd.readouterr().out


def test_a_record_that_cannot_be_understood(first: Path) -> None:
    source = find(registry(), first)
    sections = yaml.safe_load((source.path / "job.yaml").read_text())
    sections["model"]["tilt"] = 3
    rewrite(source.path, yaml.safe_dump(sections))
    with pytest.raises(CheckpointError, match=r"job\.yaml: it cannot be compared .* model\.tilt: no such setting"):
        require_same(job().model, find(registry(), first), {}, "train.init_from")


def test_ranks_end_with_the_same_message(first: Path, tmp_path: Path) -> None:
    (one, two) = spawn(refused, 2, str(tmp_path / "second"), f"train.init_from={first}")
    assert one == two
    assert "model.slope: 0.25 in its job.yaml, 0.5 in this run" in one


def refused(out: str, *words: str) -> str:
    try:
        run(job(*words), Path(out))
    except RecipeError as error:
        return str(error)
    return "nothing"


def request(source: Path, target: Path, form: str, recipe: str | None = None) -> Request:
    spec = registry().get("checkpoint", form)
    return Request(source=source, target=target, to=Part(spec, spec.config()), recipe=recipe)


def test_convert_does_not_write_settings_that_the_source_contradicts(first: Path, tmp_path: Path) -> None:
    """The dropout of --recipe may differ: it decides nothing that the weights compute."""
    (tmp_path / "other.yaml").write_text("recipe: toy\nmodel: {use: toy_model, slope: 0.125, dropout: 0.5}\n")
    with pytest.raises(CheckpointError) as error:
        convert(registry(), request(first, tmp_path / "one", "single", str(tmp_path / "other.yaml")))
    assert str(error.value).splitlines()[1:] == [
        f"  - model.slope: 0.25 in its job.yaml, 0.125 in --recipe {tmp_path}/other.yaml",
        "Correct the one that is wrong",
    ]
    assert not (tmp_path / "one").exists()
    (tmp_path / "other.yaml").write_text("recipe: toy\nmodel: {use: toy_model, slope: 0.25, dropout: 0.5}\n")
    convert(registry(), request(first, tmp_path / "one", "single", str(tmp_path / "other.yaml")))
    assert (tmp_path / "one").is_dir()


def test_check_knows_the_folder_of_another_run(first: Path) -> None:
    assert problems(job("model.slope=0.25"), 1, first) == []
    (told,) = problems(job("model.slope=2"), 1, first)
    with pytest.raises(ConfigError) as error:
        run(job("model.slope=2"), first)
    assert told == str(error.value)


@pytest.mark.parametrize(
    ("takes", "gives", "told"),
    [
        (("a", "b"), ("b", "c"), "toy_model takes a, which toy_data does not give (it gives b, c)"),
        (("b",), ("b", "c"), ""),
        (("a",), (), ""),  # no message if one of the two does not say
    ],
)
def test_a_dataset_whose_batches_the_model_does_not_take(
    takes: tuple[str, ...], gives: tuple[str, ...], told: str
) -> None:
    model, data = next(iter(toy.register_models())), next(iter(toy.register_datasets()))
    model, data = replace(model, takes=takes), replace(data, gives=gives)
    found = list(batch_problems(Part(model, model.config()), Part(data, data.config()), None))
    assert (len(found) == 1 and told in found[0]) if told else not found
