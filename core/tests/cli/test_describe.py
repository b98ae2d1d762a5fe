"""Settings explained in the terminal, with types, values and meanings from the settings classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from recipe_core.cli.main import main
from recipe_core.hooks.train import Train
from recipe_core.settings.describe import described, meanings
from recipe_core.testing import toy

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    monkeypatch.setattr("recipe_core.hooks.registry.load", toy.registry)
    monkeypatch.setattr("recipe_core.hooks.registry.distributions", dict)

    def type_it(*arguments: str) -> tuple[int, str, str]:
        return main(arguments), *capsys.readouterr()

    return type_it


def test_every_setting_of_training_has_a_meaning() -> None:
    assert meanings(Train).keys() == {field.name for field in dataclasses.fields(Train)}


def test_one_setting_with_the_value_that_the_line_gives_it(typed: Typed) -> None:
    code, out, err = typed("show", "toy:tiny", "train.lr=0.5", "--describe", "train.lr")
    assert (code, out, err) == (0, "  train.lr=0.5  (float)\n      Peak learning rate.\n", "")


def test_a_section_with_the_other_parts_of_its_kind(typed: Typed) -> None:
    code, out, _ = typed("show", "toy:tiny", "layout=fsdp", "--describe", "layout")
    assert code == 0
    assert out.startswith("layout=fsdp: ")
    assert "others: ddp" in out


def test_all_sections(typed: Typed) -> None:
    everything = typed("show", "toy:tiny", "--describe")
    assert everything == typed("show", "--describe", "toy:tiny")
    heads = [line.partition("=")[0].partition(":")[0] for line in everything[1].splitlines() if line[:1].isalpha()]
    assert heads[:2] == ["model", "data"]
    assert {"layout", "checkpoint", "engine", "optimizer", "schedule", "train"} <= {*heads}
    assert "  train.precision=fp32  (fp32|bf16_mixed|bf16|fp8)\n" in everything[1]


@pytest.mark.parametrize(
    ("section", "message"),
    [("tain", "toy:tiny has no section 'tain'; did you mean 'train'? (sections: model, "),
     ("train.lrr", "train has no setting 'lrr'; did you mean 'lr'? (settings: steps, ")],
)  # fmt: skip
def test_what_is_not_there_is_named(typed: Typed, section: str, message: str) -> None:
    code, out, err = typed("show", "toy:tiny", "--describe", section)
    assert (code, out) == (2, "")
    assert err.startswith(f"recipe show: --describe: {message}")


def test_help_about_what_the_line_names(typed: Typed) -> None:
    code, out, _ = typed("run", "toy:tiny", "--help")
    assert code == 0
    assert "Settings of toy:tiny (`recipe show toy:tiny --describe` explains them):\n" in out
    assert "  train.SETTING: steps, stop_after, " in out
    assert "Settings of" not in typed("run", "--help")[1]
    code, out, err = typed("run", "toi", "--help")
    assert (code, err) == (0, "")
    assert out.endswith("\nno recipe named 'toi'; did you mean 'toy'? (there are: toy)\n")


def test_a_class_made_at_run_time_has_settings_without_meanings() -> None:
    made = dataclasses.make_dataclass("Made", [("size", int, 3)])
    assert [(one.name, one.value, one.meaning) for one in described(made, {"size": 4})] == [("size", "4", "")]
