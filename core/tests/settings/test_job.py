"""A job: the recipe, overridden by variant, file and arguments; one message reports all mistakes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from recipe_core import (
    DataFacts,
    Dataset,
    Layout,
    LayoutSettings,
    Model,
    ModelFacts,
    Recipe,
    Train,
    Use,
    hookimpl,
    plugin,
)
from recipe_core.errors import ConfigError, DataError, DiskFullError, PluginError
from recipe_core.hooks.registry import Registry, load
from recipe_core.settings.job import Job, resolve
from recipe_core.settings.sections import SECTIONS
from recipe_core.testing import toy
from recipe_core.train.start.check import checked_job

HERE = "fake_parts"


@dataclass(frozen=True, kw_only=True)
class Gpt:
    layers: int = 4
    positions: int = 64
    rates: tuple[float, ...] = (1, 2)
    scale: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bert:
    depth: int = 2


@dataclass(frozen=True, kw_only=True)
class Tokens:
    sequence: int = 32
    vocabulary: int = 100
    missing: tuple[str, ...] = ()
    hopeless: bool = False


@dataclass(frozen=True, kw_only=True)
class Tp(LayoutSettings):
    tp: int = 2

    def axes(self, world_size: int) -> dict[str, int]:
        if self.tp > 8:
            raise ValueError(f"tp: {self.tp} ranks are more than a machine has")
        return {"dp": max(1, world_size // self.tp), "tp": self.tp}


@dataclass(frozen=True)
class NoDp(LayoutSettings):
    def axes(self, world_size: int) -> dict[str, int]:
        return {"fsdp": world_size}


def model_facts(config: Gpt, sequence: int) -> ModelFacts:
    return ModelFacts(
        parameters=1000 * config.layers,
        flops_per_sample=6.0 * sequence,
        activation_values=sequence * config.layers,
        recomputed_activation_values=sequence,
        logits_values=sequence * 100,
        max_sequence=config.positions,
        vocabulary=100,
    )


def data_facts(config: Tokens) -> DataFacts:
    if config.hopeless:
        raise DataError("tokens.idx: is no index file")
    problems = tuple(f"{name}.idx: not found" for name in config.missing)
    return DataFacts(sequence=config.sequence, vocabulary=config.vocabulary, problems=problems)


TRAIN = Train(steps=10, global_batch=8, micro_batch=2, betas=(0.9, 0.95))
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {"model": {"layers": 1}, "train": {"steps": 2}},
    "smallest": {"extends": "tiny", "train": {"steps": 1}},
    "sharded": {"layout": "team", "train": {"lr": 1}},
    "many": {"extends": "sharded", "processes": 8},
    "more": {"extends": "many", "processes": 16},
    "same": {"extends": "many"},
    "none": {"processes": 0},
    "words": {"processes": "8"},
    "circle": {"extends": "back"},
    "back": {"extends": "circle"},
    "lost": {"extends": "tyni"},
}


class Fakes:
    @hookimpl
    def register_models(self) -> Iterable[Model]:
        yield Model(name="gpt", build=f"{HERE}:build", config=Gpt, facts=f"{HERE}:model_facts")
        yield Model(name="bert", build=f"{HERE}:build", config=Bert)

    @hookimpl
    def register_datasets(self) -> Iterable[Dataset]:
        yield Dataset(name="tokens", build=f"{HERE}:build", config=Tokens, facts=f"{HERE}:data_facts")
        yield Dataset(name="silent", build=f"{HERE}:build")

    @hookimpl
    def register_layouts(self) -> Iterable[Layout]:
        yield Layout(name="team", build=f"{HERE}:build", config=Tp)
        yield Layout(name="nodp", build=f"{HERE}:build", config=NoDp)

    @hookimpl
    def register_recipes(self) -> Iterable[Recipe]:
        yield Recipe(
            name="gpt",
            summary="for tests",
            model=Use("gpt", layers=6),
            data=Use("tokens"),
            train=TRAIN,
            variants=VARIANTS,
        )


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the module that the contributions name."""
    module = ModuleType(HERE)
    vars(module).update(model_facts=model_facts, data_facts=data_facts, build=lambda *args: args)
    monkeypatch.setitem(sys.modules, HERE, module)


REGISTRY = load([("core", lambda: plugin), ("fakes", Fakes)])


def job(*words: str, target: Any = "gpt", **options: Any) -> Job:
    """Return the job of a command line, checked for a number of processes if given."""
    return (checked_job if "world_size" in options else resolve)(REGISTRY, target, words, **options)


def problems(*words: str, target: Any = "gpt", **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        job(*words, target=target, **options)
    first, *others = str(caught.value).splitlines()
    if others:
        assert first == f"{len(others)} problems:"
    return [line.removeprefix("  - ") for line in others] or [first]


@pytest.mark.parametrize("word", ["train.seed=12345678901234567890123", "train.steps=1e30", "train.seed=-1e19"])
def test_numbers_that_no_counter_holds(word: str) -> None:
    name = word.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^{name}: expected less than 2\^63, got -?\d+$"):
        job(word)


def test_a_recipe_is_resolved_as_it_stands() -> None:
    found = job()
    assert (found.name, found.variant, found.train) == ("gpt", None, TRAIN)
    assert found.model.config == Gpt(layers=6)
    assert [p.spec.name for p in (found.model, found.data, found.layout, found.checkpoint)] == [
        "gpt",
        "tokens",
        "ddp",
        "dcp",
    ]


def test_variant_then_words() -> None:
    found = job("train.steps=7", target="gpt:tiny")
    assert (found.name, found.variant) == ("gpt:tiny", "tiny")
    assert found.model.config == Gpt(layers=1)
    assert found.train.steps == 7


def test_a_variant_extends_another() -> None:
    found = job(target="gpt:smallest")
    assert (found.model.config.layers, found.train.steps) == (1, 1)


def test_words_may_stand_in_any_order() -> None:
    assert job("layout.tp=8", "layout=team") == job("layout=team", "layout.tp=8")
    assert job("layout=team", "layout.tp=8").layout.config == Tp(tp=8)


def test_another_part_drops_the_settings_of_the_old_one() -> None:
    assert job("model=bert").model.config == Bert()
    assert problems("model=bert", "model.layers=1") == [
        "model.layers: no such setting (settings: depth)",
    ]
    assert job("layout=ddp", target="gpt:sharded").layout.spec.name == "ddp"


def test_overrides_may_be_sections() -> None:
    found = resolve(REGISTRY, "gpt", {"layout": "team", "train": {"steps": 3}, "data": None})
    assert (found.layout.config, found.train.steps) == (Tp(), 3)


def test_a_part_is_built_with_what_it_is_called_with() -> None:
    found = job()
    assert found.model.build(found.model.config, 1) == (Gpt(layers=6), 1)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gtp", "no recipe named 'gtp'; did you mean 'gpt'? (there are: gpt)"),
        ("gpt:circle", "gpt: variants extend each other in a circle: circle -> back -> circle"),
    ],
)
def test_a_target_that_is_not_there(target: str, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        job(target=target)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gpt:tyni", "gpt has no variant 'tyni'; did you mean 'tiny'? (variants: "),
        ("gpt:", "gpt has no variant '' (variants: tiny, "),
        ("gpt:lost", "gpt:lost extends 'tyni', and there is no variant 'tyni'; did you mean 'tiny'? (variants: "),
    ],
)
def test_a_variant_that_is_not_there(target: str, message: str) -> None:
    (found,) = problems(target=target)
    assert found.startswith(message)


def test_every_mistake_is_in_one_message() -> None:
    assert problems(
        "layout=taem",
        "model.layres=1",
        "trian.steps=1",
        "train.lr=fast",
        "train.steps=0",
        "steps",
        "data.missing=a,b",
        world_size=3,
    ) == [
        "'steps': expected section.setting=value, as in train.steps=100 or layout=ddp",
        f"trian: no such section; did you mean 'train'? (sections: {', '.join(SECTIONS)})",
        "model.layres: no such setting; did you mean 'layers'? (settings: layers, positions, rates, scale)",
        "layout: no layout named 'taem'; did you mean 'team'? "
        "(there are: ddp, fsdp, nodp, pp, single, team, tp, zero1)",
        "train.lr: expected a number, got 'fast'",
        "a.idx: not found",
        "b.idx: not found",
    ]


def test_what_does_not_fit_together_is_found_where_the_number_of_processes_is_known() -> None:
    words = ("train.global_batch=9", "data.sequence=65", "data.vocabulary=101")
    assert job(*words).train.global_batch == 9
    expected = [
        "train.global_batch: 9 does not divide by 4 (train.micro_batch 2 x 2 data-parallel ranks); take 8 or 12",
        "data: a sample has 65 tokens and the model takes at most 64; shorten the samples (data.sequence) or give the "
        "model more positions",
        "data: its token ids go up to 100 and the model knows those below 100; raise model.vocabulary to at least 101",
    ]
    assert problems(*words, world_size=2) == expected
    assert job(*words[1:], "data.sequence=64", "data.vocabulary=100", "train.global_batch=8", world_size=2)


@pytest.mark.parametrize(
    ("words", "world_size", "message"),
    [
        (["layout=single"], 2, "layout: single runs in one process, and this run has 2; choose layout=ddp"),
        (
            ["layout=team", "layout.tp=4"],
            2,
            "layout: team makes a mesh of dp=1 x tp=4, 4 processes, and this run has 2",
        ),
        (["layout=team"], 3, "layout: team makes a mesh of dp=1 x tp=2, 2 processes, and this run has 3"),
        (["layout=team", "layout.tp=9"], 9, "layout: tp: 9 ranks are more than a machine has"),
        (["layout=nodp"], 1, "layout: nodp names no axis 'dp' (its axes: fsdp); fix the plugin"),
        (
            ["train.micro_batch=16"],
            1,
            "train.global_batch: 8 does not divide by 16 (train.micro_batch 16 x 1 data-parallel rank); take 16, or a "
            "smaller train.micro_batch",
        ),
        (["data.hopeless=true"], 1, "tokens.idx: is no index file"),
    ],
)
def test_processes_batches_and_files(words: list[str], world_size: int, message: str) -> None:
    assert problems(*words, world_size=world_size) == [message]


class Pair:
    """A recipe for a team of two."""

    @hookimpl
    def register_recipes(self) -> Iterable[Recipe]:
        yield Recipe(
            name="pair", summary="for a team", model=Use("gpt"), data=Use("tokens"), layout=Use("team"), processes=2,
            train=TRAIN,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "count"), [("gpt", 1), ("gpt:tiny", 1), ("gpt:many", 8), ("gpt:more", 16), ("gpt:same", 8)]
)
def test_a_variant_says_how_many_processes_it_is_made_for(name: str, count: int) -> None:
    job = resolve(REGISTRY, name, ["train.global_batch=64"], 0)
    assert job.processes == count
    assert resolve(REGISTRY, job.as_dict()).processes == count
    assert resolve(REGISTRY, name, ["train.global_batch=64"], 2).processes == count  # which the line may change


@pytest.mark.parametrize("name", ["none", "words"])
def test_a_number_of_processes_that_is_none(name: str) -> None:
    with pytest.raises(PluginError, match=f"gpt:{name}: processes: expected a whole number of at least 1, got "):
        resolve(REGISTRY, f"gpt:{name}")


def test_a_recipe_says_how_many_processes_it_starts_by_itself() -> None:
    registry = load([("core", lambda: plugin), ("fakes", Fakes), ("pair", Pair)])
    assert resolve(registry, "pair", (), 0).axes(2) == {"dp": 1, "tp": 2}
    with pytest.raises(ConfigError, match="makes a mesh of dp=1 x tp=2, 2 processes, and this run has 1"):
        checked_job(registry, "pair", (), 1)


def test_tensor_parallel_ranks_share_samples() -> None:
    assert job("layout=team", "train.global_batch=4", world_size=4).train.global_batch == 4


def test_a_disk_that_is_too_small_is_found_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6000 parameters in fp32 with two moments take 72,000 bytes; two checkpoints are kept while a third is written."""
    words = ("train.save_every=1",)
    monkeypatch.setattr("recipe_core.train.start.check.parts.free_space", lambda folder: 3 * 72_000)
    assert job(*words, world_size=1, out=tmp_path)
    monkeypatch.setattr("recipe_core.train.start.check.parts.free_space", lambda folder: 3 * 72_000 - 1)
    text = (
        f"{tmp_path}: there will be 3 checkpoints of 72 kB at once, 216 kB in all, and 216 kB are free; free some "
        "space, lower train.keep, or choose another --out"
    )
    with pytest.raises(DiskFullError, match=f"^{re.escape(text)}$"):  # whose exit code asks for room
        job(*words, world_size=1, out=tmp_path)
    assert problems(*words, "train.golden=/none", world_size=1, out=tmp_path)[1:] == [text]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "old").write_bytes(b"1")
    assert job(*words, world_size=1, out=tmp_path)


def test_what_says_nothing_of_itself_is_no_problem() -> None:
    for words in (["data=silent"], ["model=bert"]):
        found = job(*words, world_size=2, out=Path())
        assert found.model_facts() is None
    assert job("data=silent").tokens_per_sample() == 0
    assert job("model=bert").tokens_per_sample() == 32


def test_facts_are_asked_for_the_length_of_the_samples() -> None:
    facts = job("data.sequence=16").model_facts()
    assert facts is not None
    assert facts.flops_per_sample == 6.0 * 16


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_a_file_is_a_recipe_with_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, "recipe: gpt\nvariant: tiny\nlayout: team\ntrain: {lr: 1e-4}\n")
    for target in (path, str(path)):
        found = job("train.steps=9", target=target)
        assert found == job("layout=team", "train.lr=1e-4", "train.steps=9", target="gpt:tiny")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {steps: 1}", "expected a line `recipe: NAME`, as `recipe show` prints it"),
        ("recipe: [gpt]", "expected a line `recipe: NAME`, as `recipe show` prints it"),
        ("recipe: gpt\nvariant: 6.7", "variant: expected a name, got 6.7"),
        ("- gpt", "expected settings as `recipe show NAME` prints them, got list"),
        ("", "is empty; expected settings, as `recipe show NAME > mine.yaml` writes them"),
        (
            "recipe: gpt:tiny",
            "recipe: expected a name, got 'gpt:tiny'; write two lines, `recipe: gpt` and `variant: tiny`",
        ),
        ("recipe: {", "is not YAML (while parsing a flow node"),
    ],
)
def test_a_file_that_is_no_job(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    (found,) = problems(target=path)
    assert found.startswith(f"{path}: {message}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert problems(target=str(path)) == [f"{path}: cannot be read (No such file or directory)"]
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    (found,) = problems(target=str(tmp_path / "bytes.yaml"))
    assert found.startswith(f"{tmp_path / 'bytes.yaml'}: is not YAML ('utf-8' codec")


def test_sections_of_a_file_are_checked_like_words(tmp_path: Path) -> None:
    path = written(tmp_path, "recipe: gpt\nmodle: {}\ntrain: 5\nlayout: [tp]\nmodel: {layers: x, 7: 8}\n")
    assert problems(target=path) == [
        f"modle: no such section; did you mean 'model'? (sections: {', '.join(SECTIONS)})",
        "train: expected settings ({name: value}), got 5",
        "layout: expected settings ({name: value}), got ['tp']",
        "model.7: no such setting (settings: layers, positions, rates, scale)",
        "model.layers: expected a whole number, got 'x'",
    ]


def test_two_plugins_with_one_part_are_named_by_who_asks_for_it() -> None:
    rival = SimpleNamespace(register_models=hookimpl(lambda: [Model(name="gpt", build="a:b")]))
    asking = SimpleNamespace(
        register_recipes=hookimpl(lambda: [replace(recipe, name="asking") for recipe in Fakes().register_recipes()])
    )
    modules = {"core": plugin, "fakes": Fakes(), "rival": rival, "third": asking}
    registry: Registry = load([(name, partial(lambda module: module, module)) for name, module in modules.items()])
    with pytest.raises(ConfigError, match=r"^model: model 'gpt' is provided by plugin 'fakes' and by plugin 'rival'"):
        resolve(registry, "asking")
    assert resolve(registry, "asking", ["model=bert"]).model.config == Bert()
    assert resolve(registry, "gpt").model.spec.name == "fakes/gpt"  # its own


numbers = st.floats(min_value=0, max_value=1e6, allow_nan=False)
words_of: dict[str, Callable[[Any], str]] = {
    "model.layers": str,
    "model.rates": lambda v: ",".join(map(repr, v)),
    "model.scale": lambda v: "{" + ", ".join(f"{k}: {x!r}" for k, x in v.items()) + "}",
    "train.lr": repr,
    "train.stop_after": lambda v: "null" if v is None else str(v),
    "train.compile": lambda v: str(v).lower(),
}
values = st.fixed_dictionaries(
    {},
    optional={
        "model.layers": st.integers(1, 99),
        "model.rates": st.lists(numbers, max_size=3),
        "model.scale": st.dictionaries(st.sampled_from("abc"), numbers, max_size=2),
        "train.lr": numbers,
        "train.stop_after": st.none() | st.integers(1, 9),
        "train.compile": st.booleans(),
    },
)


@examples(deadline=None, derandomize=True, max_examples=50)
@given(values, st.sampled_from(["gpt", "gpt:tiny", "gpt:sharded"]))
def test_a_job_as_text_is_the_same_job(settings: dict[str, Any], target: str) -> None:
    found = job(*(f"{path}={words_of[path](value)}" for path, value in settings.items()), target=target)
    assert resolve(REGISTRY, found.as_dict()) == found
    text = found.as_yaml()
    assert "!!" not in text
    again = resolve(REGISTRY, yaml.safe_load(text))
    assert again == found
    assert again.as_yaml() == text


def test_the_text_of_a_job_starts_with_its_recipe_and_keeps_lists_on_a_line() -> None:
    text = job(target="gpt:tiny").as_yaml()
    assert text.startswith("recipe: gpt\nvariant: tiny\nmodel:\n  use: gpt\n  layers: 1\n")
    assert "  betas: [0.9, 0.95]\n" in text


@dataclass(frozen=True, kw_only=True)
class Epochs(Train):
    """Training settings of a recipe that counts in epochs."""

    epochs: int = 2

    def for_run(self, world_size: int, train_samples: int | None) -> Epochs:
        return replace(self, steps=self.epochs * 10 // world_size, global_batch=4 * world_size)


def minds(job: Job, world_size: int) -> list[str]:
    """Return problems that only that recipe finds."""
    return ["train.seed: 13 is unlucky"] if job.train.seed == 13 and world_size == 2 else []


def test_a_recipe_may_have_settings_of_training_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fake_minds", SimpleNamespace(minds=minds))  # type: ignore[arg-type]
    registry = toy.registry()
    claim = registry.registrations["recipe"]["toy"]
    own = replace(registry.get("recipe", "toy"), train=Epochs(), variants={}, problems="fake_minds:minds")
    registry.registrations["recipe"]["toy"] = replace(claim, item=own)
    assert resolve(registry, "toy", ["train.epochs=3"]).train.steps == Train().steps
    job = resolve(registry, "toy", ["train.epochs=3", "train.micro_batch=4"], 2)
    assert (job.train.steps, job.train.global_batch, job.as_dict()["train"]["epochs"]) == (15, 8, 3)
    assert resolve(registry, job.as_dict(), [], 1).train.steps == 30
    with pytest.raises(ConfigError, match=r"epochs: expected a whole number, got 'few'"):
        resolve(registry, "toy", ["train.epochs=few"], 1)
    assert checked_job(registry, "toy", ["train.seed=13", "train.micro_batch=4"], 1).train.seed == 13
    with pytest.raises(ConfigError, match=r"train\.seed: 13 is unlucky"):
        checked_job(registry, "toy", ["train.seed=13", "train.micro_batch=4"], 2)
