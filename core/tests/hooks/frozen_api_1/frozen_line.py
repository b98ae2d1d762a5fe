"""A model and a dataset, as somebody wrote them for API 1. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recipe_core import (
    ConfigError,
    DataFacts,
    Dataset,
    Job,
    Model,
    ModelFacts,
    Recipe,
    Stages,
    Train,
    Use,
    hookimpl,
    too_small,
)

API = 1


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack of linear layers behind an embedding."""

    layers: int = 2
    width: int = 16
    words: int = 12
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "layers", "width", "words"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Numbers that go up by a step."""

    sequence: int = 8
    words: int = 12


@dataclass(frozen=True, kw_only=True)
class Longer(Train):
    """A section ``train`` with a setting of its own."""

    patience: int = 3


def model_facts(config: Stack, sequence: int) -> ModelFacts:
    inner, outer = config.width * config.width + config.width, 2 * config.words * config.width
    return ModelFacts(
        parameters=outer + config.width * 2 + config.layers * inner,
        flops_per_sample=6.0 * sequence * (config.layers * config.width**2 + config.words * config.width),
        activation_values=sequence * config.width * (config.layers + 2),
        recomputed_activation_values=sequence * config.width * (config.layers + 2),
        logits_values=sequence * config.words,
        vocabulary=config.words,
        blocks=config.layers,
        block_parameters=inner,
        divided_parameters=outer,
    )


def data_facts(config: Counted) -> DataFacts:
    return DataFacts(sequence=config.sequence, vocabulary=config.words)


def plan(config: Stack) -> Mapping[str, str]:
    return {"words": "vocabulary_in", "blocks.*": "sequence", "norm": "replicated", "head": "vocabulary_out"}


def problems(job: Job, world_size: int) -> Iterable[str]:
    if not isinstance(job.train, Longer):
        raise ConfigError("train: expected the settings of this recipe")
    if job.train.patience > job.train.steps:
        yield "train.patience: is more than train.steps"


def log_line(row: Mapping[str, float], job: Job) -> str:
    return f"step {row['step']} of {job.train.steps}"


@hookimpl
def register_models() -> Iterable[Model]:
    yield Model(
        name="frozen_stack",
        build="frozen_line_parts:build",
        config=Stack,
        facts="frozen_line:model_facts",
        blocks="blocks.*",
        plan="frozen_line:plan",
        stages=Stages(first=("words",), last=("norm", "head")),
        deferred=True,
        free=("dropout",),
        takes=("ids", "next"),
        example="frozen_line_parts:example",
        adapters={"hf": "frozen_line_parts:Renamed"},
        summary="a stack of linear layers",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(
        name="frozen_numbers",
        build="frozen_line_parts:read",
        config=Counted,
        facts="frozen_line:data_facts",
        gives=("ids", "next"),
        summary="numbers that go up by a step",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    yield Recipe(
        name="frozen",
        summary="a stack that continues counting",
        model=Use("frozen_stack"),
        data=Use("frozen_numbers", sequence=8),
        layout=Use("single"),
        checkpoint=Use("dcp"),
        train=Longer(steps=6, global_batch=8, micro_batch=4, lr=1e-2, log_every=1, eval_every=3, eval_samples=8),
        variants={"tiny": {"model": {"width": 8}}, "deep": {"extends": "tiny", "model": {"layers": 3}}},
        problems="frozen_line:problems",
        log_line="frozen_line:log_line",
        closing="frozen_line_parts:closing",
    )
