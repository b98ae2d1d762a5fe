"""Parts of a model's output by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from recipe_core import LossSpec, Model, PluginError, output_of
from recipe_core.layouts.outputs import require_outputs, with_output_names
from recipe_core.layouts.parallel import Batch

LOGITS, HIDDEN = torch.tensor([1.0]), torch.tensor([2.0])


class Pair(NamedTuple):
    logits: Tensor
    hidden: Tensor | None


@dataclass
class Held:
    logits: Tensor
    hidden: Tensor | None


class Derived:
    """A part that is computed when it is read."""

    def __init__(self) -> None:
        self.hidden = HIDDEN

    @property
    def logits(self) -> Tensor:
        return LOGITS


def model(*outputs: str) -> Model:
    return Model(name="net", build="net:build", outputs=outputs)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        {"logits": LOGITS, "hidden": HIDDEN},
        Pair(LOGITS, HIDDEN),
        Held(LOGITS, HIDDEN),
        Derived(),
        require_outputs((LOGITS, HIDDEN), model("logits", "hidden")),
        require_outputs([HIDDEN, LOGITS], model("hidden", "logits")),
    ],
)
def test_a_part_is_read_by_name(output: Any) -> None:
    assert output_of(output, "logits") is LOGITS
    if output is not LOGITS:
        assert output_of(output, "hidden") is HIDDEN


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"hidden": HIDDEN}, "the output of the model has no 'logits': it is a dict with hidden"),
        (Pair(None, HIDDEN), "the output of the model has no 'logits': it is a Pair with logits, hidden"),  # type: ignore[arg-type]
        ((LOGITS, HIDDEN), "the output of the model has no 'logits': it is a tuple without names"),
        ([LOGITS], "the output of the model has no 'logits': it is a list without names"),
        (3.0, "the output of the model has no 'logits': it is a float without names"),
    ],
)
def test_a_part_that_is_missing(output: Any, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        output_of(output, "logits")
    assert str(caught.value) == message


def test_a_tuple_with_names_is_a_tuple_still() -> None:
    first, second = named = require_outputs((LOGITS, HIDDEN), model("logits", "hidden"))
    assert isinstance(named, tuple)
    assert (first, second) == (LOGITS, HIDDEN)


@pytest.mark.parametrize(
    ("output", "outputs", "message"),
    [
        (LOGITS, ("logits", "hidden"), "a tensor, which has one name"),
        ((LOGITS,), ("logits", "hidden"), "a tuple without names, of 1"),
        ({"logits": LOGITS}, ("logits", "hidden"), "a dict with logits, without hidden"),
        (Held(LOGITS, None), ("logits", "hidden"), "a Held with logits, hidden, without hidden"),
    ],
)
def test_an_output_that_is_not_as_declared(output: Any, outputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(PluginError) as caught:
        require_outputs(output, model(*outputs))
    wanted = f"model 'net' declares the outputs {', '.join(outputs)}, and its output is {message}; fix the plugin"
    assert str(caught.value) == wanted


def read(output: Any, batch: Batch) -> Mapping[str, Tensor]:
    return {"loss": output_of(output, "hidden")}


def test_a_loss_gets_the_names_that_the_model_declares() -> None:
    spec = LossSpec(name="mine", build="mine:build", needs=("hidden",))
    assert with_output_names(read, spec, model("logits", "hidden"))((LOGITS, HIDDEN), {}) == {"loss": HIDDEN}
    assert with_output_names(read, spec, model())({"hidden": HIDDEN}, {}) == {"loss": HIDDEN}
    with pytest.raises(PluginError, match="loss 'mine' needs hidden of the output of model 'net', which is a tuple"):
        with_output_names(read, spec, model())((LOGITS, HIDDEN), {})
    assert with_output_names(read, LossSpec(name="mine", build="mine:build"), model()) is read


def test_one_tensor_is_not_two_parts() -> None:
    spec = LossSpec(name="mine", build="mine:build", needs=("logits", "hidden"))
    with pytest.raises(PluginError, match="loss 'mine' needs hidden of the output of model 'net', which is a tensor"):
        with_output_names(read, spec, model())(LOGITS, {})
