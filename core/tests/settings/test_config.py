"""Settings: text becomes what is declared, every mistake is named, and plain data makes the same settings again."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from recipe_core.hooks.train import Train
from recipe_core.settings import fill
from recipe_core.settings.values import choices, kinds


class Shape(enum.Enum):
    ROUND = "round"
    SQUARE = "square"


@dataclass(frozen=True, kw_only=True)
class Rope:
    theta: float = 10_000
    scaled: bool = False


@dataclass(frozen=True, kw_only=True)
class Slope:
    slope: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Settings:
    layers: int = 4
    lr: float = 1e-3
    compile: bool = False
    name: str = "gpt"
    path: Path = Path("a/b")
    order: Literal["fast", "megatron"] = "fast"
    bits: Literal[8, 16] = 16
    shape: Shape = Shape.ROUND
    stop_after: int | None = None
    tokenizer: str | None = None
    files: tuple[str, ...] = ()
    split: tuple[float, ...] = (969, 30, 1)
    betas: tuple[float, float] = (0.9, 0.95)
    sizes: list[int] = field(default_factory=list)
    tags: frozenset[str] = frozenset()
    weights: Mapping[str, float] = field(default_factory=dict)
    rope: Rope = field(default_factory=Rope)
    maybe: Rope | None = None
    ropes: tuple[Rope, ...] = ()
    either: Rope | Slope = field(default_factory=Rope)
    many: int | str = 1
    bare: tuple = ()  # type: ignore[type-arg]


def filled(**given: Any) -> Settings:
    problems: list[str] = []
    settings = fill.fill(Settings, given, "model", problems)
    assert problems == []
    assert settings is not None
    return settings


def refused(kind: type = Settings, **given: Any) -> list[str]:
    problems: list[str] = []
    assert fill.fill(kind, given, "model", problems) is None
    return problems


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        ("layers", "12", 12),
        ("layers", "1e3", 1000),
        ("layers", "-2", -2),
        ("lr", "3", 3.0),
        ("lr", "1e-3", 1e-3),
        ("lr", ".5", 0.5),
        ("compile", "true", True),
        ("compile", "False", False),
        ("compile", "on", True),
        ("compile", "no", False),
        ("name", "12", "12"),
        ("name", "true", "true"),
        ("name", "null", "null"),
        ("name", "[a, b]", "[a, b]"),
        ("name", "", ""),
        ("path", "/x/y.bin", Path("/x/y.bin")),
        ("order", "megatron", "megatron"),
        ("bits", "8", 8),
        ("shape", "square", Shape.SQUARE),
        ("stop_after", "null", None),
        ("stop_after", "7", 7),
        ("tokenizer", "null", None),
        ("tokenizer", "7", "7"),
        ("files", "a,b", ("a", "b")),
        ("files", "a", ("a",)),
        ("files", "", ()),
        ("files", "[a, 007]", ("a", "007")),
        ("split", "969, 30,1", (969.0, 30.0, 1.0)),
        ("betas", "[0.9, 1e-1]", (0.9, 0.1)),
        ("sizes", "1,1e2", [1, 100]),
        ("bare", "1,b", ("1", "b")),
        ("tags", "b,a", frozenset("ab")),
        ("weights", "{a: 1, b: 2e-1}", {"a": 1.0, "b": 0.2}),
        ("rope", "{theta: 5, scaled: yes}", Rope(theta=5.0, scaled=True)),
        ("maybe", "null", None),
        ("maybe", "{}", Rope()),
        ("ropes", "[{theta: 1}, {scaled: true}]", (Rope(theta=1.0), Rope(scaled=True))),
        ("either", "{slope: 2}", Slope(slope=2.0)),
        ("many", "3", 3),
        ("many", "three", "three"),
    ],
)
def test_text_becomes_what_the_setting_declares(setting: str, text: str, value: object) -> None:
    found = getattr(filled(**{setting: text}), setting)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("lr", "fast", "model.lr: expected a number, got 'fast'"),
        ("lr", "nan", "model.lr: expected a number, got 'nan'"),
        ("lr", "inf", "model.lr: expected a number, got 'inf'"),
        ("lr", float("nan"), "model.lr: expected a finite number, got NaN"),
        ("lr", True, "model.lr: expected a number, got true"),
        ("lr", None, "model.lr: expected a number, got null"),
        ("layers", "1.5", "model.layers: expected a whole number, got '1.5'"),
        ("layers", 1.5, "model.layers: expected a whole number, got 1.5"),
        ("layers", "1e999", "model.layers: expected a whole number, got '1e999'"),
        ("layers", True, "model.layers: expected a whole number, got true"),
        ("layers", [4], "model.layers: expected a whole number, got [4]"),
        ("compile", "1", "model.compile: expected true or false, got '1'"),
        ("compile", 1, "model.compile: expected true or false, got 1"),
        ("name", 5, "model.name: expected text, got 5"),
        ("order", "fsat", "model.order: expected 'fast' or 'megatron', got 'fsat'; did you mean 'fast'?"),
        ("bits", "9", "model.bits: expected 8 or 16, got '9'"),
        ("shape", "oval", "model.shape: expected 'round' or 'square', got 'oval'"),
        ("betas", "0.9", "model.betas: expected 2 values, got [0.9]"),
        ("betas", "1,2,3", "model.betas: expected 2 values, got [1, 2, 3]"),
        ("sizes", "1,x", "model.sizes[1]: expected a whole number, got 'x'"),
        ("sizes", "[1", "model.sizes[0]: expected a whole number, got '[1'"),
        ("weights", "x", "model.weights: expected settings ({name: value}), got 'x'"),
        ("weights", {"a": "x"}, "model.weights.a: expected a number, got 'x'"),
        ("rope", "5", "model.rope: expected settings ({name: value}), got '5'"),
        ("rope", {"theta": "x"}, "model.rope.theta: expected a number, got 'x'"),
        ("ropes", [{}, {"theta": "x"}], "model.ropes[1].theta: expected a number, got 'x'"),
        ("many", [1], "model.many: expected a whole number or text, got [1]"),
        ("path", 5, "model.path: expected text, got 5"),
        ("lr", 10**400, f"model.lr: expected a finite number, got 1{'0' * 96}..."),
        ("betas", ["x", 1], "model.betas[0]: expected a number, got 'x'"),
        ("either", {"slope": "x"}, "model.either.slope: expected a number, got 'x'"),
        ("either", 5, "model.either: expected settings ({name: value}), got 5"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(setting: str, value: object, message: str) -> None:
    assert refused(**{setting: value}) == [message]


def test_an_unknown_setting_gets_the_nearest_name() -> None:
    (message,) = refused(layres=5)
    assert message.startswith("model.layres: no such setting; did you mean 'layers'? (settings: layers, lr, ")
    assert refused(rope={"teta": 1}) == [
        "model.rope.teta: no such setting; did you mean 'theta'? (settings: theta, scaled)"
    ]


@dataclass(frozen=True)
class Nothing:
    pass


@dataclass(frozen=True)
class Required:
    layers: int
    heads: int


@dataclass(frozen=True)
class Fragile:
    heads: int = 4
    hidden: int = 8

    def __post_init__(self) -> None:
        problems = []
        if self.hidden % self.heads:
            problems.append(f"hidden, heads: {self.hidden} does not divide by {self.heads}")
        if self.hidden > 100:
            problems.append("too large a model")
        if problems:
            raise ValueError("\n".join(problems))


def test_a_class_without_settings_says_so() -> None:
    assert refused(Nothing, a=1) == ["model.a: no such setting (it has none)"]


def test_a_setting_without_default_must_be_given() -> None:
    assert refused(Required, heads=2) == ["model.layers: is missing, and has no default"]


def test_post_init_says_several_things_at_once() -> None:
    assert refused(Fragile, heads=3, hidden=101) == [
        "model.hidden, model.heads: 101 does not divide by 3",
        "model: too large a model",
    ]


def test_post_init_that_fails_otherwise_is_the_settings_fault() -> None:
    (message,) = refused(Fragile, heads=0)
    assert message.startswith("model: Fragile takes no such settings (ZeroDivisionError: ")


def test_all_mistakes_of_one_class_come_together() -> None:
    assert len(refused(layres=1, lr="x", order="y")) == 3


def test_unknown_names_and_remote_places_hide_no_other_mistake() -> None:
    @dataclass(frozen=True)
    class Files(Fragile):
        paths: tuple[str, ...] = ()

    unknown, own, remote = refused(Files, head=1, heads=3, paths="a,s3://b/x")
    assert unknown == "model.head: no such setting; did you mean 'heads'? (settings: heads, hidden, paths)"
    assert own == "model.hidden, model.heads: 8 does not divide by 3"
    assert remote.startswith("model.paths: expected a path on this machine, got 's3://b/x': ")


def test_one_of_several_settings_classes_names_what_is_wrong_inside() -> None:
    assert refused(either={"teta": 1}) == [
        "model.either.teta: no such setting; did you mean 'theta'? (settings: theta, scaled)"
    ]


def test_a_number_keeps_its_value_or_is_refused() -> None:
    """No rounding on the way: a whole number beyond 2^53 stays itself, and text is read at once as what it becomes."""
    assert filled(layers=2**53 + 1).layers == 2**53 + 1
    assert filled(layers=str(2**63 + 1)).layers == 2**63 + 1
    assert filled(layers=2.0).layers == 2
    assert type(filled(lr=5).lr) is float


def test_a_type_that_no_setting_can_have_is_named() -> None:
    @dataclass(frozen=True)
    class Odd:
        number: complex = 1j

    assert refused(Odd, number=1) == [
        "model.number: expected a type that settings can have, which <class 'complex'> is not, got 1"
    ]


def test_defaults_get_their_declared_types() -> None:
    settings = filled()
    assert [type(share) for share in settings.split] == [float] * 3
    assert type(settings.rope.theta) is float


@dataclass(frozen=True)
class BadDefault:
    lr: float = "fast"  # type: ignore[assignment]


def test_a_default_that_does_not_fit_is_found() -> None:
    assert refused(BadDefault) == ["model.lr: expected a number, got 'fast'"]


@dataclass(frozen=True)
class OddDefault:
    thing: object = object()


def test_what_yaml_cannot_hold_is_refused() -> None:
    (message,) = refused(name=object())
    assert message.startswith("model: expected what YAML can hold")
    (message,) = refused(OddDefault)
    assert message.startswith("model.thing: YAML cannot hold the default of OddDefault.thing, <object object at")


texts = st.text(max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
ropes = st.builds(Rope, theta=numbers, scaled=st.booleans())
settings_strategy = st.builds(
    Settings,
    layers=st.integers(),
    lr=numbers,
    compile=st.booleans(),
    name=texts,
    path=texts.filter(lambda t: "\0" not in t).map(Path),
    order=st.sampled_from(["fast", "megatron"]),
    bits=st.sampled_from([8, 16]),
    shape=st.sampled_from(Shape),
    stop_after=st.none() | st.integers(),
    tokenizer=st.none() | texts.filter(lambda t: t != "null"),
    files=st.lists(texts, max_size=3).map(tuple),
    split=st.lists(numbers, max_size=3).map(tuple),
    betas=st.tuples(numbers, numbers),
    sizes=st.lists(st.integers(), max_size=3),
    tags=st.frozensets(texts, max_size=3),
    weights=st.dictionaries(texts, numbers, max_size=3),
    rope=ropes,
    maybe=st.none() | ropes,
    ropes=st.lists(ropes, max_size=2).map(tuple),
    either=ropes | st.builds(Slope, slope=numbers),
    many=st.integers() | st.sampled_from(["three", "a,b"]),
)


@examples(deadline=None, derandomize=True, max_examples=50)
@given(settings_strategy)
def test_plain_data_through_yaml_makes_the_same_settings(settings: Settings) -> None:
    text = yaml.safe_dump(fill.plain(settings))
    assert "!!python" not in text
    again = filled(**yaml.safe_load(text))
    assert again == settings
    assert yaml.safe_dump(fill.plain(again)) == text


@examples(deadline=None, derandomize=True, max_examples=50)
@given(st.builds(Train, lr=st.floats(0, 1), steps=st.integers(1, 10**9), betas=st.tuples(*[st.floats(0, 0.99)] * 2)))
def test_settings_as_words_make_the_same_settings(train: Train) -> None:
    """``json`` writes lists as YAML's flow form, and text with quotes; words carry text without."""
    plain = fill.plain(train)
    words = [f"train.{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in plain.items()]
    problems: list[str] = []
    assert fill.fill(Train, fill.overrides(words, problems)["train"], "train", problems) == train
    assert problems == []


def test_overrides_nest_and_the_last_word_counts() -> None:
    problems: list[str] = []
    words = ["train.steps=5", "layout=tp", "model.rope.theta=1", "layout.tp=8", "layout=ddp", "train.note=a=b"]
    assert fill.overrides(words, problems) == {
        "train": {"steps": "5", "note": "a=b"},
        "layout": {"use": "ddp", "tp": "8"},
        "model": {"rope": {"theta": "1"}},
    }
    assert fill.overrides(["a.b=null", "a.b.c=1"], problems) == {"a": {"b": {"c": "1"}}}
    assert fill.overrides(["a.b.c=1", "a.b=null"], problems) == {"a": {"b": "null"}}
    assert problems == []


@pytest.mark.parametrize("word", ["steps", "=5", ".steps=5", "train.=5", "train..steps=5", "train steps=5"])
def test_a_word_that_is_no_override_is_told_the_form(word: str) -> None:
    problems: list[str] = []
    assert fill.overrides([word], problems) == {}
    assert problems == [f"{word!r}: expected section.setting=value, as in train.steps=100 or layout=ddp"]


def test_merge_lays_settings_over_settings() -> None:
    base = {"layout": {"use": "tp", "tp": 8}, "train": {"steps": 5, "lr": 1.0}, "kept": {"a": 1}}
    extra = {"train": {"lr": 2.0}, "layout": {"sequence": True}}
    assert fill.merge(base, extra) == {
        "layout": {"use": "tp", "tp": 8, "sequence": True},
        "train": {"steps": 5, "lr": 2.0},
        "kept": {"a": 1},
    }
    assert base["train"] == {"steps": 5, "lr": 1.0}


def test_naming_another_part_drops_the_settings_of_the_old_one() -> None:
    base = {"layout": {"use": "tp", "tp": 8}}
    assert fill.merge(base, {"layout": {"use": "ddp"}}) == {"layout": {"use": "ddp"}}
    assert fill.merge(base, {"layout": {"use": "tp", "x": 1}}) == {"layout": {"use": "tp", "tp": 8, "x": 1}}


def test_choices_of_what_has_few() -> None:
    declared = kinds(Settings)
    assert choices(declared["order"]) == ["fast", "megatron"]
    assert choices(declared["bits"]) == ["8", "16"]
    assert choices(declared["shape"]) == ["round", "square"]
    assert choices(declared["compile"]) == ["true", "false"]
    assert choices(declared["stop_after"]) == ["null"]
    assert choices(declared["lr"]) == []
