"""A plugin whose recipe writes down what it is called with, instead of training."""

import json
import sys
from dataclasses import dataclass

from recipe_core import DataFacts, Dataset, Model, ModelFacts, Recipe, Train, Use, hookimpl
from recipe_core.errors import DataError
from recipe_core.launch.worker import worker


@dataclass(frozen=True)
class Gpt:
    layers: int = 4
    fail: str = ""


@dataclass(frozen=True)
class Tokens:
    sequence: int = 32
    missing: tuple[str, ...] = ()


@hookimpl
def register_models():
    yield Model(name="gpt", build="fake_plugin:none", config=Gpt, facts="fake_plugin:model_facts", summary="a model")


@hookimpl
def register_datasets():
    yield Dataset(name="tokens", build="fake_plugin:none", config=Tokens, facts="fake_plugin:data_facts")
    yield Dataset(name="silent", build="fake_plugin:none", summary="of unknown length")


@hookimpl
def register_recipes():
    yield Recipe(
        name="fake",
        summary="writes down its call",
        model=Use("gpt"),
        data=Use("tokens"),
        train=Train(steps=10, global_batch=8, micro_batch=2, save_every=5, device="cpu"),
        variants={"tiny": {"train": {"steps": 2}}},
        run="fake_plugin:run",
    )


def none(*arguments):
    raise AssertionError("the fake recipe builds nothing")


def model_facts(config, sequence):
    return ModelFacts(
        parameters=2_000_000,
        flops_per_sample=3e9,
        activation_values=10_000,
        recomputed_activation_values=1_000,
        logits_values=500,
        max_sequence=64,
        vocabulary=100,
    )


def data_facts(config):
    problems = tuple(f"{name}: not found" for name in config.missing)
    return DataFacts(sequence=config.sequence, train_samples=40, problems=problems)


def run(job, out):
    rank = worker().rank if worker() else None
    if job.model.config.fail == "user":
        raise DataError(f"tokens.bin: truncated, says rank {rank}")
    if job.model.config.fail == "bug":
        raise RuntimeError("broken code")
    if job.model.config.fail == "interrupt":
        raise KeyboardInterrupt
    out.mkdir(parents=True, exist_ok=True)
    said = {"name": job.name, "steps": job.train.steps, "rank": rank, "words": sys.argv[1:]}
    (out / f"called-{rank}.json").write_text(json.dumps(said))
