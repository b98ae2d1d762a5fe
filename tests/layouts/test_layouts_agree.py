"""Every layout computes the same from the same first weights, and resumes from the checkpoints of every other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.hooks.registry import load
from recipe_core.settings.fill import flat
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, Row, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

Cases = Mapping[str, tuple[int, Sequence[str]]]
"""Processes and arguments of runs, by the name of their folder."""
LAYOUTS: Cases = {
    "single": (1, ["layout=single"]),
    "ddp": (2, ["layout=ddp"]),
    "zero1": (2, ["layout=zero1"]),
    "fsdp": (2, ["layout=fsdp"]),
    "fsdp reducing once": (2, ["layout=fsdp", "layout.reduce_each_micro_batch=false"]),
    "tp": (2, ["layout=tp"]),
    "tp, sequence": (2, ["layout=tp", "layout.sequence_parallel=true"]),
    "pp": (2, ["layout=pp"]),
    "tp x ddp": (4, ["layout=tp"]),
    "tp x zero1": (4, ["layout=tp", "layout.data=zero1"]),
    "tp x fsdp": (4, ["layout=tp", "layout.data=fsdp"]),
    "tp x fsdp, sequence": (4, ["layout=tp", "layout.data=fsdp", "layout.sequence_parallel=true"]),
    "tp 4": (4, ["layout=tp", "layout.tp=4"]),
    "tp 4, sequence": (4, ["layout=tp", "layout.tp=4", "layout.sequence_parallel=true"]),
    "pp x tp": (4, ["layout=pp", "layout.tp=2"]),
    "pp x tp, sequence": (4, ["layout=pp", "layout.tp=2", "layout.sequence_parallel=true"]),
    "pp x ddp": (4, ["layout=pp"]),
    "pp x fsdp": (4, ["layout=pp", "layout.data=fsdp"]),
}
RECIPES = {
    "megatron_gpt": ["model.positions=32", "data.sequence=32"],
    "bert_dp": ["model.vocabulary=1002"],  # which 4 does not divide
}


GPT, BERT = list(LAYOUTS), [name for name in LAYOUTS if not name.startswith("pp")]
pytestmark = pytest.mark.timeout(600)
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
MINUTES = [pytest.mark.long, pytest.mark.timeout(1800)]
SOME_AND_ALL = [
    pytest.param("megatron_gpt", ["single", "zero1", "fsdp", "tp, sequence", "pp"], id="gpt"),
    pytest.param("bert_dp", ["single", "fsdp", "tp", "tp, sequence"], id="bert"),
    pytest.param("megatron_gpt", GPT, id="gpt-all", marks=SLOW),
    pytest.param("bert_dp", BERT, id="bert-all", marks=SLOW),
]
"""Recipe and layouts: on two processes, and all."""
ONE_AND_ALL = [SOME_AND_ALL[0], *SOME_AND_ALL[2:]]
"""The same, with fewer that run by default."""
STEPS = 20
WORDS = ["train.eval_every=0", "train.lr=1e-3"]
LONG = [f"train.steps={STEPS + 1}", f"train.stop_after={STEPS}"]  # no closing words, for which a GPT writes a text
STILL = ["model.dropout=0", "model.attention_dropout=0"]
LAMB = ["train.optimizer=lamb", "train.lr=5e-3"]


def in_turn(recipe: str, cases: Mapping[str, Sequence[str]], folder: str) -> None:
    """Body of one process, for all of ``cases``."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

    registry, store = load(), os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(cases.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        job = checked_job(registry, f"{recipe}:tiny", words, int(os.environ["WORLD_SIZE"]))
        run(job, Path(folder, name))
        _clear_sharding_prop_cache()  # or DTensor uses meshes of this run, whose groups are destroyed


def runs(recipe: str, cases: Cases, folder: Path) -> dict[str, list[Row]]:
    """Return the metrics of ``cases``; those with the same number of processes share these, one after the other."""
    for processes in sorted({count for count, _ in cases.values()}):
        words = {name: [*RECIPES[recipe], *words] for name, (count, words) in cases.items() if count == processes}
        spawn(in_turn, processes, recipe, words, str(folder), timeout=1800)
    return {name: read_rows(folder / name / METRICS) for name in cases}


def under(names: Iterable[str], *words: str) -> Cases:
    """Return runs of some layouts with the same further arguments."""
    return {name: (LAYOUTS[name][0], [*words, *LAYOUTS[name][1]]) for name in names}


def values(rows: list[Row], *keys: str) -> dict[int, tuple[float, ...]]:
    """Return metrics by step, for the steps that have all of them."""
    return {row["step"]: tuple(row[key] for key in keys) for row in rows if all(key in row for key in keys)}


def assert_equal(found: Mapping[str, list[Row]], wanted: list[Row], *keys: str, steps: Sequence[int]) -> None:
    expected = values(wanted, *keys)
    for name, rows in found.items():
        got = values(rows, *keys)
        for step in steps:
            assert got[step] == pytest.approx(expected[step], abs=1e-5), f"{name}, {keys} of step {step}"


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        *SOME_AND_ALL[:2],
        pytest.param("megatron_gpt", GPT, id="gpt-all", marks=MINUTES),
        pytest.param("bert_dp", BERT, id="bert-all", marks=MINUTES),
    ],
)
def test_losses_and_norms(recipe: str, names: list[str], tmp_path: Path) -> None:
    found = runs(recipe, under(names, *LONG, *WORDS, *STILL), tmp_path)
    assert_equal(found, found["single"], "loss", "grad_norm", steps=range(1, STEPS + 1))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("recipe", "names"), [("megatron_gpt", GPT), ("bert_dp", BERT)])
def test_lamb(recipe: str, names: list[str], tmp_path: Path) -> None:
    found = runs(recipe, under(names, *LONG, *WORDS, *STILL, *LAMB), tmp_path)
    assert_equal(found, found["single"], "loss", "grad_norm", steps=range(1, STEPS + 1))


RESIDUAL = ["model.dropout=0.1", "model.attention_dropout=0"]
"""Dropout only where tensor-parallel ranks hold the same values: in the attention each draws for its own heads."""


@pytest.mark.parametrize(
    ("recipe", "names", "words"),
    [
        pytest.param("megatron_gpt", ["single", "ddp", "zero1", "fsdp"], [], id="gpt-data"),
        pytest.param("megatron_gpt", ["single", "tp", "tp x fsdp", "tp 4"], RESIDUAL, id="gpt-tp"),
        pytest.param("megatron_gpt", ["pp", "pp x tp", "pp x fsdp"], RESIDUAL, id="gpt-pp"),
        pytest.param("bert_dp", ["single", "ddp", "zero1", "fsdp"], [], id="bert-data"),
        pytest.param("bert_dp", ["single", "tp", "tp x fsdp", "tp 4"], RESIDUAL, id="bert-tp"),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_dropout_where_the_streams_agree(recipe: str, names: list[str], words: list[str], tmp_path: Path) -> None:
    """Pipelines agree only with each other: each stage has random numbers of its own."""
    dropout = words or ["model.dropout=0.1", "model.attention_dropout=0.1"]
    still = runs(recipe, under(names[:1], "train.steps=3", *WORDS, *STILL), tmp_path / "still")[names[0]]
    found = runs(recipe, under(names, *LONG, *WORDS, *dropout), tmp_path)
    assert_equal(found, found[names[0]], "loss", "grad_norm", steps=range(1, STEPS + 1))
    assert values(found[names[0]], "loss")[1] != pytest.approx(values(still, "loss")[1], abs=1e-5)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the checkpoint of the first step."""
    state = flat(Dcp().open(folder / "checkpoints" / "step-1"))
    return {name: leaf.read() for name, leaf in state if isinstance(leaf, Lazy)}


@pytest.mark.parametrize(("recipe", "names"), ONE_AND_ALL)
def test_the_first_weights_are_the_same_bits(recipe: str, names: list[str], tmp_path: Path) -> None:
    """A step with learning rate 0 keeps them as initialised."""
    runs(recipe, under(names, "train.steps=2", "train.stop_after=1", *WORDS, *STILL, "train.lr=0"), tmp_path)
    wanted = {name: tensor for name, tensor in tensors(tmp_path / "single").items() if name.startswith("model.")}
    for name in names:
        found = tensors(tmp_path / name)
        assert all(found[key].equal(tensor) for key, tensor in wanted.items()), name


@pytest.mark.parametrize(("recipe", "names"), ONE_AND_ALL)
def test_evaluation_and_recomputed_blocks(recipe: str, names: list[str], tmp_path: Path) -> None:
    words = ["train.steps=5", "train.stop_after=4", *WORDS, *RESIDUAL, "train.eval_every=2"]
    wanted = runs(recipe, under(["single"], *words), tmp_path / "wanted")["single"]
    found = runs(recipe, under(names, *words, "train.activation_checkpointing=true"), tmp_path)
    assert_equal(found, wanted, "val_loss", steps=[0])
    agree = {name: rows for name, rows in found.items() if not ("pp" in name or "sequence" in name)}
    assert_equal(agree, wanted, "loss", "grad_norm", steps=[1, 2, 3, 4])
    assert_equal(agree, wanted, "val_loss", steps=[2, 4])


ROUND = [
    "single", "tp", "pp", "fsdp", "tp x fsdp", "zero1", "pp x tp", "ddp", "tp 4", "pp x fsdp", "tp, sequence",
    "tp x zero1", "tp x ddp", "single",
]  # fmt: skip
PAIRS = {
    "megatron_gpt": list(itertools.pairwise(ROUND)),
    "bert_dp": list(itertools.pairwise([name for name in ROUND if not name.startswith("pp")])),
}
"""Once through all kinds of layouts."""
SHORT = list(itertools.pairwise(["single", "tp", "pp", "fsdp", "single"]))


def assert_resumes(recipe: str, pairs: Iterable[tuple[str, str]], words: Sequence[str], folder: Path) -> None:
    """A run of the second layout resumes where one of the first stopped."""
    pairs, words = list(pairs), ["train.steps=5", *WORDS, *STILL, *words]
    wanted = runs(recipe, under(["single"], *words, "train.stop_after=4"), folder / "wanted")["single"]
    sources = list(dict.fromkeys(first for first, _ in pairs))
    runs(recipe, under(sources, *words, "train.stop_after=2"), folder / "saved")
    cases = {}
    for first, second in pairs:
        saved = folder / "saved" / first / "checkpoints" / "step-2"
        cases |= {
            f"{first} to {second}": under([second], *words, "train.stop_after=2", f"train.resume={saved}")[second]
        }
    assert_equal(runs(recipe, cases, folder), wanted, "loss", "grad_norm", steps=[3, 4])


@pytest.mark.parametrize(
    ("recipe", "pairs"),
    [
        pytest.param("megatron_gpt", SHORT, id="gpt"),
        pytest.param("megatron_gpt", PAIRS["megatron_gpt"], id="gpt-round", marks=SLOW),
        pytest.param("bert_dp", PAIRS["bert_dp"], id="bert-round", marks=SLOW),
    ],
)
def test_saved_under_one_and_resumed_under_another(recipe: str, pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    assert_resumes(recipe, pairs, [], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("recipe", "names"), [("megatron_gpt", GPT), ("bert_dp", BERT)])
@pytest.mark.parametrize("words", [[], LAMB], ids=["adamw", "lamb"])
def test_saved_under_each_and_resumed_under_each(
    recipe: str, names: list[str], words: list[str], tmp_path: Path
) -> None:
    assert_resumes(recipe, itertools.permutations(names, 2), words, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", RECIPES)
def test_one_file_of_whole_tensors_resumes_too(recipe: str, tmp_path: Path) -> None:
    pairs = [("single", "tp x fsdp"), ("tp x fsdp", "fsdp"), ("fsdp", "tp, sequence"), ("tp 4", "single")]
    assert_resumes(recipe, pairs, ["checkpoint=single"], tmp_path)
