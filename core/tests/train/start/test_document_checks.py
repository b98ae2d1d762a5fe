"""Samples of several documents: the models that take them, their operations and memory, and mixtures of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from recipe_core import DataFacts, Dataset, Model, ModelFacts
from recipe_core.data.mixture import Mixture
from recipe_core.data.mixture_facts import facts as mixture_facts
from recipe_core.hooks.specs import Part
from recipe_core.settings.facts import Facts
from recipe_core.train.start.check.parts import document_problems

HERE = "documents_of_checks"


@dataclass(frozen=True)
class Rows:
    """Settings of a dataset."""

    document_mask: bool = True
    attended_pairs: float = 0.25


@dataclass(frozen=True)
class Net:
    """Settings of a model."""


def data_facts(config: Rows) -> DataFacts:
    return DataFacts(
        sequence=20, document_mask=config.document_mask,
        attended_pairs=config.attended_pairs if config.document_mask else 1.0,
    )  # fmt: skip


def model_facts(config: Net, sequence: int) -> ModelFacts:
    return ModelFacts(
        parameters=1, flops_per_sample=1000.0, attention_flops=400.0, activation_values=10,
        recomputed_activation_values=5, logits_values=1,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(HERE)
    vars(module).update(data_facts=data_facts, model_facts=model_facts)
    monkeypatch.setitem(sys.modules, HERE, module)


def dataset(**settings: Any) -> Part[Dataset]:
    spec = Dataset(name="rows", build=f"{HERE}:build", facts=f"{HERE}:data_facts", config=Rows)
    return Part(spec, Rows(**settings))


def model(**declared: Any) -> Part[Model]:
    return Part(Model(name="net", build=f"{HERE}:build", facts=f"{HERE}:model_facts", config=Net, **declared), Net())


def mixture(parts: Mapping[str, Part[Dataset]]) -> DataFacts:
    found = mixture_facts(Mixture(parts=parts, weights={"a": 3}))
    assert found is not None
    return found


def test_a_model_that_keeps_no_documents_apart_is_refused() -> None:
    net = model()
    assert list(document_problems(net, Facts(net, dataset()))) == [
        "data.document_mask: model net does not keep the documents of a row apart (it declares no document_mask); set "
        "data.document_mask=false, or choose a model that does"
    ]
    assert not list(document_problems(net, Facts(net, dataset(document_mask=False))))
    able = model(document_mask=True)
    assert not list(document_problems(able, Facts(able, dataset())))


def test_masked_pairs_take_no_operations_and_the_mask_takes_memory() -> None:
    found = Facts(model(document_mask=True), dataset()).model
    assert found is not None
    assert found.flops_per_sample == 1000 - 0.75 * 400
    assert (found.activation_values, found.recomputed_activation_values) == (110, 105)
    plain = Facts(model(), dataset(document_mask=False)).model
    assert plain == model_facts(Net(), 20)


def test_mixtures_of_masked_samples() -> None:
    found = mixture({"a": dataset(), "b": dataset(attended_pairs=0.75)})
    assert (found.document_mask, found.problems) == (True, ())
    assert found.attended_pairs == 0.375
    mixed = mixture({"a": dataset(), "b": dataset(document_mask=False)})
    assert mixed.problems == (
        "data.parts: of a, b only a masks documents from each other (document_mask), and all samples must have the "
        "same tensors; give all parts the same setting",
    )
