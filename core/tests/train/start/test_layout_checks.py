"""Layouts that cannot work are reported before a run, with the setting and the remedy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from recipe_core import DataFacts, Layout, Model, ModelFacts, Stages, Train
from recipe_core.hooks.specs import Part
from recipe_core.layouts.settings import Divided, Fsdp, Pp, Tp, Zero1
from recipe_core.plugin import register_checkpoint_formats
from recipe_core.settings.facts import Facts
from recipe_core.train.start.check.layout import layout_problems, saving_problems

HERE = "fake_of_layouts"


@dataclass(frozen=True)
class ModelSettings:
    """Settings of a model."""

    vocabulary: int = 96


class FixedFacts(Facts):
    """Facts of a model of 4 blocks and 6 heads, and of samples of 30 tokens."""

    def __init__(self, vocabulary: int = 96) -> None:
        super().__init__(None, None)
        self.vocabulary = vocabulary

    @property
    def data(self) -> DataFacts:  # type: ignore[override]
        return DataFacts(sequence=30)

    @property
    def model(self) -> ModelFacts:  # type: ignore[override]
        return ModelFacts(
            parameters=1, flops_per_sample=1, activation_values=1, recomputed_activation_values=1, logits_values=1,
            blocks=4, divisible={"model.heads": 6, "model.width": 12}, vocabulary=self.vocabulary,
        )  # fmt: skip


def plan(config: ModelSettings) -> dict[str, str]:
    return {"words": "vocabulary_in"}


WHOLE: dict[str, Any] = {"plan": f"{HERE}:plan", "stages": Stages(first=("words",), last=("output",))}
TRAIN = Train(global_batch=16, micro_batch=2)


def problems_of(layout: Divided, world_size: int, vocabulary: int = 96, **spec: Any) -> list[str]:
    model = Part(
        Model(name="net", build=f"{HERE}:build", config=ModelSettings, **(spec or WHOLE)), ModelSettings(vocabulary)
    )
    part = Part(Layout(name="some", build=f"{HERE}:build", config=type(layout), divides=True), layout)
    return list(layout_problems(part, model, FixedFacts(vocabulary), TRAIN, world_size))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the plan importable under its name."""
    module = ModuleType(HERE)
    vars(module).update(plan=plan)
    monkeypatch.setitem(sys.modules, HERE, module)


@pytest.mark.parametrize(
    ("layout", "world_size"),
    [
        (Zero1(), 2), (Fsdp(), 8), (Tp(), 2), (Tp(tp=3), 6), (Tp(data="fsdp"), 4), (Pp(), 2), (Pp(pp=4), 8),
        (Pp(tp=2), 4), (Tp(sequence_parallel=True), 2),
    ],
)  # fmt: skip
def test_what_fits(layout: Divided, world_size: int) -> None:
    assert problems_of(layout, world_size) == []


@pytest.mark.parametrize(
    ("layout", "world_size", "message"),
    [
        (
            Tp(tp=2), 3,
            "layout: tp 2 takes a multiple of 2 processes, and this run has 3; start as many (--processes), or choose "
            "other degrees",
        ),
        (
            Pp(pp=2, tp=2), 6,
            "layout: pp 2 x tp 2 takes a multiple of 4 processes, and this run has 6; start as many (--processes), or "
            "choose other degrees",
        ),
        (
            Tp(tp=4), 4,
            "layout.tp: 4 does not divide model.heads, which is 6; take 1, 2, 3 or 6, or change model.heads",
        ),
        (
            Tp(tp=4, sequence_parallel=True), 4,
            "layout.sequence_parallel: a sample of 30 tokens does not divide by 4 (layout.tp); set it to false, or "
            "take samples of another length",
        ),
        (
            Pp(pp=8), 8,
            "layout.pp: 8 stages need as many blocks, and the model has 4; take at most that many",
        ),
        (
            Pp(pp=4), 16,
            "train.global_batch: 16 makes 2 micro batches a step (train.micro_batch 2 x 4 data-parallel ranks), and a "
            "pipeline of 4 stages needs as many as it has stages; take at least 32, or a smaller train.micro_batch",
        ),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit(layout: Divided, world_size: int, message: str) -> None:
    assert message in problems_of(layout, world_size)


def test_a_vocabulary_is_cut_unevenly_unless_it_is_shared_out_further() -> None:
    assert problems_of(Tp(), 4, 97) == []
    assert problems_of(Tp(data="zero1"), 2, 97) == []  # one team: nothing to share out
    assert problems_of(Tp(data="fsdp"), 4, 97) == [
        "layout.tp: 2 does not divide model.vocabulary, which is 97, and layout.data=fsdp shares out parts of one size "
        "only; take layout.data=ddp, or model.vocabulary=98"
    ]


def test_a_model_that_says_too_little() -> None:
    assert problems_of(Tp(), 2, blocks="x.*") == [
        "layout.tp: model 'net' has no tensor plan; choose layout=ddp, zero1 or fsdp"
    ]
    assert problems_of(Pp(), 2, blocks="x.*") == [
        "layout.pp: model 'net' names no stages of a pipeline; choose layout=ddp, zero1 or fsdp"
    ]


@dataclass(frozen=True, kw_only=True)
class TpOn(Tp):
    """A layout that is sequence parallel unless the user says otherwise."""

    sequence_parallel: bool = True


@dataclass(frozen=True)
class TpAlways(Divided):
    """A layout that is always sequence parallel."""

    tp, sequence_parallel = 2, True


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            Tp(tp=4, sequence_parallel=True),  # 30 tokens do not divide by 4 either
            "layout.sequence_parallel: true, and model 'net' can be tensor parallel, but not sequence parallel; set "
            "layout.sequence_parallel=false",
        ),
        (
            TpOn(),
            "layout.sequence_parallel: true, which is the default of layout=some, and model 'net' can be tensor "
            "parallel, but not sequence parallel; set layout.sequence_parallel=false",
        ),
        (
            TpAlways(),
            "layout.sequence_parallel: true, which is the default of layout=some, and model 'net' can be tensor "
            "parallel, but not sequence parallel; choose another layout",
        ),
    ],
)
def test_a_model_that_cannot_be_sequence_parallel(layout: Divided, message: str) -> None:
    found = problems_of(layout, layout.tp, **WHOLE, sequence_parallel=False)
    assert [problem for problem in found if "sequence_parallel" in problem] == [message]
    assert problems_of(Tp(), 2, **WHOLE, sequence_parallel=False) == []
    assert problems_of(Pp(sequence_parallel=True), 2, **WHOLE, sequence_parallel=False) == []  # tp is 1


@pytest.mark.parametrize(("layout", "refused"), [(Pp(), True), (Tp(), False), (Fsdp(), False)])
def test_one_file_cannot_hold_what_no_process_has(layout: Divided, refused: bool) -> None:
    forms = {form.name: Part(form, form.config()) for form in register_checkpoint_formats()}
    part = Part(Layout(name="pp", build=f"{HERE}:build", config=type(layout), divides=True), layout)
    assert list(saving_problems(part, forms["dcp"], 2)) == []
    wanted = (
        "checkpoint.use: single is written by one process, and under layout=pp none has the parameters of all stages; "
        "take checkpoint=dcp, and make the other format of the finished run: recipe convert RUN FOLDER --to single"
    )
    assert list(saving_problems(part, forms["single"], 2)) == [wanted] * refused
