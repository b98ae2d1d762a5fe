"""Data wrappers and datasets of datasets, in settings: how they are written, recorded, merged, and refused."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from recipe_core import DataFacts, Dataset, DataWrapperSpec, IndexFacts, Part, Recipe, Train, Use, hookimpl
from recipe_core.data.identity import differences, identity_of
from recipe_core.data.mixture import LONGEST, Mixture, period
from recipe_core.errors import ConfigError
from recipe_core.hooks.specs.wrapper import gives
from recipe_core.settings.facts import data_facts
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import toy
from recipe_core.train.start.check import checked_job


@dataclass(frozen=True, kw_only=True)
class Least:
    least: int = 3


@dataclass(frozen=True, kw_only=True)
class Words:
    sequence: int = 4
    vocabulary: int | None = 10
    tokenizer: str = ""
    wrong: bool = False


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    for name, given in (("words", ("tokens", "labels")), ("pictures", ("tokens", "pixels")), ("secret", ())):
        yield Dataset(
            name=name,
            build="recipe_core.testing.toy_parts:build_data",
            facts=f"{__name__}:facts",
            tokenizer=f"{__name__}:tokenizer",
            config=Words,
            gives=given,
            indices=f"{__name__}:needs",
        )


@hookimpl
def register_data_wrappers() -> Iterable[DataWrapperSpec]:
    build = "recipe_core.layouts.samples.counted:build"
    yield DataWrapperSpec(name="long_only", build=build, config=Least, takes=("tokens",), filters=True)
    yield DataWrapperSpec(name="cut", build=build, facts=f"{__name__}:halved", drops=("labels",))
    yield DataWrapperSpec(name="labelled", build=build, takes=("tokens",), gives=("labels",))
    yield DataWrapperSpec(name="shifted", build=build, takes=("labels", "tokens"))


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    yield Recipe(
        name="wrapped",
        summary="a recipe with a wrapper",
        model=Use("toy_model"),
        data=Use("words", wrappers=("long_only", "labelled")),
        wrappers={"long_only": {"least": 7}},
        train=Train(steps=2),
        variants={"tiny": {}},
    )
    yield Recipe(
        name="mixed",
        summary="a recipe with a mixture",
        model=Use("toy_model"),
        data=Use("mixture", parts={"a": Use("words", wrappers=("long_only",)), "b": Use("pictures")}, weights={"a": 2}),
        variants={"tiny": {"data": {"parts": {"b": {"sequence": 6}}}}},
    )


def needs(config: Words, train: Train) -> IndexFacts:
    return IndexFacts(memory=config.sequence, disk=10, files=1, maps=2, advice=f"take {train.steps}")


def facts(config: Words) -> DataFacts:
    problems = ("data.sequence: too odd", "the data is old") if config.wrong else ()
    return DataFacts(
        sequence=config.sequence, vocabulary=config.vocabulary, train_samples=100, valid_samples=10, problems=problems
    )


def tokenizer(config: Words) -> dict[str, str]:
    return {"vocab.txt": config.tokenizer} if config.tokenizer else {}


def halved(config: object, facts: DataFacts) -> DataFacts:
    return DataFacts(sequence=facts.sequence // 2, vocabulary=facts.vocabulary, train_samples=facts.train_samples)


def job(*words: str, recipe: str | dict[str, Any] = "wrapped") -> Job:
    return resolve(toy.registry(sys.modules[__name__]), recipe, words)


def refused(*words: str, recipe: str = "wrapped") -> str:
    with pytest.raises(ConfigError) as error:
        job(*words, recipe=recipe)
    return str(error.value)


def listed(part: Part[Dataset]) -> dict[str, Any]:
    return {one.spec.name: getattr(one.config, "least", None) for one in part.wrappers}


def test_wrappers_are_listed_in_order_with_their_settings() -> None:
    assert listed(job().data) == {"long_only": 7, "labelled": None}
    assert listed(job("data.wrappers=labelled,long_only", "wrapper.long_only.least=2").data) == {
        "labelled": None, "long_only": 2,
    }  # fmt: skip
    assert listed(job("wrappers=labelled").data) == {"labelled": None}
    assert listed(job("wrappers=").data) == {}
    assert listed(job("data=pictures").data) == {}  # another dataset does not take over the wrappers of the first
    assert listed(job("data=pictures", "wrappers=long_only").data) == {"long_only": 7}


def test_a_job_file_holds_them() -> None:
    one = job("wrapper.long_only.least=9")
    plain = yaml.safe_load(one.as_yaml())
    assert plain["data"] == {
        "use": "words", "wrappers": ["long_only", "labelled"], "sequence": 4, "vocabulary": 10, "tokenizer": "",
        "wrong": False,
    }  # fmt: skip
    assert plain["wrapper"] == {"long_only": {"least": 9}}
    assert job(recipe=plain) == one
    assert listed(job("wrappers=labelled", recipe=plain).data) == {"labelled": None}
    assert listed(job(recipe={"recipe": "wrapped", "data": "words", "wrappers": "labelled"}).data) == {"labelled": None}
    assert "wrapper" not in resolve(toy.registry(), "toy").as_dict()


def test_a_mixture_holds_datasets_with_their_own_settings_and_wrappers() -> None:
    words = (
        "data=mixture", "data.parts.a.use=words", "data.parts.a.sequence=8", "data.parts.a.wrappers=long_only",
        "data.parts.b.use=pictures", "data.parts.b.sequence=8", "wrapper.long_only.least=2", "data.weights.b=3",
    )  # fmt: skip
    one = job(*words)
    mixture: Mixture = one.data.config
    assert {name: part.config.sequence for name, part in mixture.parts.items()} == {"a": 8, "b": 8}
    assert listed(mixture.parts["a"]) == {"long_only": 2}
    assert gives(one.data) == ("tokens",)
    plain = yaml.safe_load(one.as_yaml())
    assert plain["data"]["parts"]["b"] == {
        "use": "pictures", "sequence": 8, "vocabulary": 10, "tokenizer": "", "wrong": False,
    }  # fmt: skip
    assert plain["wrapper"] == {"long_only": {"least": 2}}
    assert job(recipe=plain) == one
    assert gives(job("data=mixture", "data.parts.a.use=words", "data.parts.b.use=secret").data) == ()
    nested = job("data=mixture", "data.parts.a.use=mixture", "data.parts.a.parts.c.use=words").data
    assert nested.config.parts["a"].config.parts["c"].spec.name == "words"
    assert gives(nested) == ("tokens", "labels")


def test_a_recipe_names_its_mixture() -> None:
    one = job(recipe="mixed:tiny")
    parts = one.data.config.parts
    assert {name: (part.spec.name, part.config.sequence) for name, part in parts.items()} == {
        "a": ("words", 4), "b": ("pictures", 6),
    }  # fmt: skip
    assert listed(parts["a"]) == {"long_only": 3}
    assert one.as_dict()["data"]["parts"]["a"]["wrappers"] == ["long_only"]


def test_indices_of_a_mixture_are_built_one_after_the_other() -> None:
    one = job("data.parts.a.sequence=6", recipe="mixed:tiny")
    assert one.facts.indices(one.train) == IndexFacts(memory=6, disk=20, files=2, maps=4, advice="take 100")


def test_facts_follow_the_wrappers() -> None:
    assert data_facts(job("wrappers=labelled").data) == facts(Words())
    filtered = data_facts(job().data)
    assert filtered is not None
    assert (filtered.sequence, filtered.train_samples, filtered.valid_samples) == (4, None, None)
    cut = data_facts(job("wrappers=cut").data)
    assert cut is not None
    assert (cut.sequence, cut.train_samples) == (2, 100)
    assert gives(job("wrappers=cut").data) == ("tokens",)
    assert gives(job("wrappers=cut,labelled").data) == ("tokens", "labels")
    assert gives(job("data=secret", "wrappers=labelled").data) == ()


def mixture(*words: str) -> DataFacts | None:
    parts = ("data=mixture", "data.parts.a.use=words", "data.parts.b.use=pictures")
    return data_facts(job(*parts, *words).data)


def test_facts_of_a_mixture_are_those_of_its_parts() -> None:
    assert mixture() == DataFacts(sequence=4, vocabulary=10, train_samples=200, valid_samples=20)
    found = mixture("data.parts.a.wrappers=long_only", "data.parts.b.tokenizer=x")
    assert found == DataFacts(sequence=4, vocabulary=10, train_samples=None, valid_samples=None)
    unknown = data_facts(job("data=mixture", "data.parts.a.use=mixture", "data.parts.a.parts.b.use=words").data)
    assert unknown == facts(Words())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("data.parts.b.sequence=8",),
            "data.parts: samples must have one length, and have (a 4, b 8) tokens; give all the same",
        ),
        (
            ("data.parts.a.tokenizer=x", "data.parts.b.tokenizer=y"),
            "data.parts: the parts have different tokenizers (digests: a …, b …), so that one id means several tokens; "
            "prepare all with one tokenizer",
        ),
        (
            ("data.parts.b.vocabulary=12",),
            "data.parts: the parts have vocabularies of different sizes (a 10, b 12); encode all with one vocabulary",
        ),
    ],
)
def test_parts_that_do_not_fit_are_a_problem(words: tuple[str, ...], said: str) -> None:
    found = mixture(*words)
    assert found is not None
    (problem,) = found.problems
    head, _, tail = said.partition("a …, b …")
    assert problem.startswith(head)
    assert problem.endswith(tail)


def test_problems_of_a_part_name_its_settings() -> None:
    found = mixture("data.parts.b.wrong=true")
    assert found is not None
    assert found.problems == ("data.parts.b.sequence: too odd", "data.parts.b: the data is old")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wrappers=long",), "data.wrappers: no data wrapper named 'long'; did you mean 'long_only'? (there are: "),
        (("wrapper.long_only.least=many",), "wrapper.long_only.least: expected a whole number, got 'many'"),
        (("wrapper.long_only.most=1",), "wrapper.long_only.most: no such setting"),
        (
            ("wrapper.cut.x=1",),
            "wrapper.cut: this data wrapper is not used; add it: data.wrappers=long_only,labelled,cut",
        ),
        (("wrappers.long_only.least=1",), "wrappers.long_only: wrappers lists names; write `wrapper.long_only` for"),
        (("wrapper=long_only",), "wrapper: it holds settings; write `wrappers=long_only` for the list of names"),
        (("data=mixture", "data.parts.a=words"), "data.parts.a: expected the settings of a dataset, got 'words'; "),
        (("data=mixture", "data.parts.a.sequence=4"), "data.parts.a: expected a line `use: NAME`"),
        (("data=mixture", "data.parts.a.use=word"), "data.parts.a: no dataset named 'word'; did you mean 'words'?"),
        (("data=mixture", "data.parts.a.use=words", "data.parts.a.sequence=x"), "data.parts.a.sequence: expected a "),
        (("data=mixture", "data.parts.a.use=words", "data.parts.a.wrappers=x"), "data.parts.a.wrappers: no data "),
        (
            ("data=mixture", "data.parts.a.use=words", "data.weights.b=2"),
            "data.weights: 'b' is no part (parts: a)",
        ),
        (
            ("data=mixture", "data.parts.a.use=words", "data.weights.a=0"),
            "data.weights: expected a number above 0 for 'a', got 0.0; leave out a part that is not wanted",
        ),
        (
            ("data=mixture", "data.parts.a.use=words", "data.parts.b.use=words", "data.weights.a=0.00001"),
            "data.weights: 'a' would have fewer than 1 of 10,000 samples; raise its weight, or leave it out",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(words: tuple[str, ...], said: str) -> None:
    assert refused(*words).startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data=mixture",), "data.parts: names no datasets; add at least one: data.parts.NAME.use=DATASET"),
        (("data=words", "wrappers=cut,labelled,shifted"), ""),
        (
            ("data=words", "wrappers=cut,shifted"),
            "data.wrappers: shifted takes labels, which words does not give there (it gives tokens); leave it out, or "
            "put the wrapper that adds it before it",
        ),
        (("data=toy_data", "wrappers=long_only"), ""),  # which does not say what it gives
    ],
)  # fmt: skip
def test_what_check_says(words: tuple[str, ...], said: str) -> None:
    registry = toy.registry(sys.modules[__name__])
    if not said:
        checked_job(registry, "wrapped", words)
        return
    with pytest.raises(ConfigError) as error:
        checked_job(registry, "wrapped", words)
    assert said in str(error.value)


def test_weights_are_exact_where_they_can_be() -> None:
    def of(**weights: float) -> dict[str, int]:
        return period(Mixture(parts=dict.fromkeys(weights), weights=weights))

    assert of(a=3, b=1) == {"a": 3, "b": 1}
    assert of(a=0.7, b=0.2, c=0.1) == {"a": 7, "b": 2, "c": 1}
    assert of(a=50, b=50) == {"a": 1, "b": 1}
    assert of(a=0.1, b=0.1, c=0.1) == {"a": 1, "b": 1, "c": 1}
    assert period(Mixture(parts={"a": 1, "b": 1}, weights={"b": 2})) == {"a": 1, "b": 2}
    odd = of(a=0.333333, b=0.123457, c=0.71)
    assert sum(odd.values()) == LONGEST
    total = 0.333333 + 0.123457 + 0.71
    for count, weight in zip(odd.values(), (0.333333, 0.123457, 0.71), strict=True):
        assert abs(count - weight / total * LONGEST) < 1


def test_another_wrapper_is_another_order() -> None:
    registry = toy.registry(sys.modules[__name__])

    def record(*words: str) -> dict[str, Any]:
        return dict(identity_of(resolve(registry, "wrapped", ("data.tokenizer=x", *words)).data).record)

    plain, filtered = record("wrappers="), record("wrappers=long_only", "wrapper.long_only.least=2")
    assert differences(plain, filtered) == ["data.wrappers: none was recorded, now long_only(least=2)"]
    assert differences(filtered, plain) == ["data.wrappers: long_only(least=2) was recorded, now none"]
    other = record("wrappers=long_only", "wrapper.long_only.least=3")
    assert differences(filtered, other) == ["data.wrappers: long_only(least=2) was recorded, now long_only(least=3)"]
    assert differences(filtered, filtered) == []
    parts = ("data=mixture", "data.parts.a.use=words", "data.parts.b.use=words")

    def mixed(*words: str) -> dict[str, Any]:
        return dict(identity_of(resolve(registry, "wrapped", (*parts, *words)).data).record)

    assert differences(mixed(), mixed("data.weights.a=3")) == [
        "data.weights: 1 of a, 1 of b was recorded, now 3 of a, 1 of b"
    ]
    assert differences(mixed(), mixed("data.parts.a.use=pictures")) == [
        "data.parts.a.use: words was recorded, now pictures"
    ]
    assert differences(mixed(), mixed("data.parts.b.wrappers=long_only")) == [
        "data.parts.b.wrappers: none was recorded, now long_only(least=7)"
    ]
