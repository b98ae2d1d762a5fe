"""A copy that drifts from those of other ranks is found, named, and not saved; equal copies never raise an alarm."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from recipe_core.errors import ReplicaError
from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve
from recipe_core.testing import spawn
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job
from recipe_core.train.step import Stepper, StepResult

STEP = 2
"""Of three; the copy changes after it."""
TINY = [
    "model.positions=16", "data.sequence=16", "model.layers=4", "train.steps=4", "train.stop_after=3",
    "train.eval_every=0",
]  # fmt: skip
TOKENS, NORM, BLOCK_NORM = "tokens.weight", "norm.weight", "blocks.0.attention_norm.weight"


def flip(tensor: Tensor) -> None:
    """Change the last bit of one value, the smallest drift that there is."""
    local = tensor.detach()
    held = local.to_local() if isinstance(local, DTensor) else local
    numbers = held.view(torch.int32 if held.element_size() == 4 else torch.int16)
    numbers.view(-1)[0] ^= 1


def weight(name: str) -> Callable[[Stepper], None]:
    return lambda stepper: flip(dict(stepper.model.named_parameters())[name])


def moment(name: str) -> Callable[[Stepper], None]:
    return lambda stepper: flip(stepper.optimizer.state[dict(stepper.model.named_parameters())[name]]["exp_avg"])


def buffer(name: str) -> Callable[[Stepper], None]:
    return lambda stepper: flip(dict(stepper.model.module.named_buffers())[name])


def link(name: str) -> Callable[[Stepper], None]:
    """From now on, what this rank gathers has a wrong bit."""

    def break_it(stepper: Stepper) -> None:
        gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
        right = getattr(dist, gather)

        def wrong(output_tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            work = right(output_tensor, *args, **kwargs)
            if work is not None:
                work.wait()
            flip(output_tensor)
            return work

        setattr(dist, gather, wrong)

    return break_it


CHANGES = {"weight": weight, "moment": moment, "buffer": buffer, "link": link}


def drifting(out: str, kind: str, name: str, rank: int, words: Sequence[str]) -> str:
    """Train with a copy that drifts on ``rank``; the error that ends the run, or nothing."""
    inner = Stepper.step

    def step(stepper: Stepper, *, last: bool) -> StepResult | None:
        if kind == "buffer" and stepper.progress.step == 0:
            stepper.model.module.register_buffer(name, torch.arange(5.0), persistent=False)
        taken = inner(stepper, last=last)
        if stepper.progress.step == STEP and stepper.run.rank == rank:
            CHANGES[kind](name)(stepper)
        return taken

    Stepper.step = step  # type: ignore[method-assign]
    try:
        run(checked_job(load(), "megatron_gpt:tiny", [*TINY, *words], int(os.environ["WORLD_SIZE"])), Path(out))
    except ReplicaError as error:
        return str(error)
    return ""


def found(folder: Path, processes: int, kind: str, name: str, rank: int, *words: str) -> str:
    """The message, which all ranks give alike."""
    messages = spawn(drifting, processes, str(folder), kind, name, rank, words)
    assert len(set(messages)) == 1
    return str(messages[0])


THREE = ["layout=ddp", "train.global_batch=12"]
CASES = [
    pytest.param(2, ["layout=ddp"], "weight", "blocks.1.mlp.up.weight", 1, "rank 1 unlike rank 0", id="ddp"),
    pytest.param(2, ["layout=ddp", "train.precision=bf16"], "weight", NORM, 1, "rank 1 unlike rank 0", id="ddp bf16"),
    pytest.param(3, THREE, "moment", TOKENS, 0, "rank 0 unlike ranks 1, 2", id="ddp moment"),
    pytest.param(2, ["layout=ddp"], "buffer", "table", 0, "rank 1 unlike rank 0", id="ddp buffer"),
    pytest.param(2, ["layout=zero1"], "buffer", "table", 1, "rank 1 unlike rank 0", id="zero1 buffer"),
    pytest.param(2, ["layout=zero1"], "link", "", 1, "rank 1 unlike rank 0", id="zero1 gather"),
    pytest.param(2, ["layout=tp"], "weight", BLOCK_NORM, 1, "rank 1 unlike rank 0", id="tp"),
    pytest.param(4, ["layout=tp"], "weight", BLOCK_NORM, 2, "rank 2 unlike ranks 0, 1, 3", id="tp x ddp"),
    pytest.param(4, ["layout=tp"], "weight", TOKENS, 3, "rank 3 unlike rank 1", id="tp x ddp shard"),
    pytest.param(4, ["layout=tp", "layout.data=fsdp"], "weight", BLOCK_NORM, 3, "rank 3 unlike rank 2", id="tp x fsdp"),
    pytest.param(4, ["layout=tp", "layout.data=zero1"], "link", "", 3, "rank 3 unlike rank 1", id="tp x zero1"),
    pytest.param(2, ["layout=pp"], "weight", TOKENS, 1, "rank 1 unlike rank 0", id="pp"),
    pytest.param(4, ["layout=pp"], "moment", TOKENS, 2, "rank 2 unlike ranks 0, 1, 3", id="pp x ddp"),
    pytest.param(4, ["layout=pp"], "weight", NORM, 3, "rank 3 unlike rank 2", id="pp x ddp last stage"),
    pytest.param(4, ["layout=pp", "layout.data=fsdp"], "weight", TOKENS, 3, "rank 3 unlike rank 1", id="pp x fsdp"),
]  # fmt: skip


@pytest.mark.parametrize(("processes", "words", "kind", "name", "rank", "ranks"), CASES)
def test_a_drift_is_found_at_its_step(
    processes: int, words: list[str], kind: str, name: str, rank: int, ranks: str, tmp_path: Path
) -> None:
    text = found(tmp_path / "run", processes, kind, name, rank, *words, "train.check_replicas_every=1")
    assert text.startswith(f"step {STEP}: copies of the same values differ between ranks: "), text
    suffix = {"moment": ".exp_avg"}.get(kind, "")
    assert name + suffix in text
    assert f"({ranks})" in text, text
    assert kind == "link" or text.count("unlike") == 1, text


def test_no_checkpoint_is_made_of_copies_that_differ(tmp_path: Path) -> None:
    """By default they are compared before each save; switched off, it is written."""
    words = ["layout=ddp", "train.save_every=1"]
    text = found(tmp_path / "run", 2, "weight", NORM, 1, *words)
    assert text.startswith(f"step {STEP}: copies of the same values differ between ranks: norm.weight (rank 1 unlike")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-1"]
    assert found(tmp_path / "off", 2, "weight", NORM, 1, *words, "train.check_replicas_at_save=false") == ""
    assert (tmp_path / "off" / "checkpoints" / "step-3").is_dir()


def fine_tuned(out: str, *words: str) -> str:
    """The loop that is Hugging Face's own, with a copy that drifts on rank 1."""
    from recipe_core.hooks.specs import load as load_function
    from recipe_hf_finetune.trainer.fine_tuner import FineTuner

    inner = FineTuner.end_step

    def end_step(tuner: Any) -> None:
        if tuner.state.global_step == STEP and tuner.context.engine.rank == 1:
            flip(dict(tuner.model.named_parameters())["classifier.bias"])
        inner(tuner)

    FineTuner.end_step = end_step
    job = checked_job(load(), "hf_finetune:tiny", ["train.steps=3", *words], int(os.environ["WORLD_SIZE"]))
    try:
        load_function(job.recipe.run, "recipe")(job, Path(out))
    except ReplicaError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("words", [["train.check_replicas_every=1"], ["train.save_every=1"]], ids=["every", "save"])
def test_a_drift_is_found_in_the_loop_of_hugging_face_too(words: list[str], tmp_path: Path) -> None:
    first, second = spawn(fine_tuned, 2, str(tmp_path / "run"), *words)
    assert first == second
    assert first.startswith(
        f"step {STEP}: copies of the same values differ between ranks: classifier.bias (rank 1 unlike"
    )
    assert not (tmp_path / "run" / "checkpoints" / f"step-{STEP}").exists()


def test_copies_that_are_not_numbers_are_equal(tmp_path: Path) -> None:
    """Equal bits are equal: a buffer of NaN and -0.0."""
    assert spawn(strange, 2) == ["", ""]


def strange() -> str:
    from torch import nn

    from recipe_core.engine import protocol as engines
    from recipe_core.hooks.train import Train
    from recipe_core.layouts.parallel import Parallel
    from recipe_core.train.guards import replicas

    with engines.start(Train(device="cpu", timeout=30)) as engine:
        module = nn.Linear(2, 2)
        module.register_buffer("odd", torch.tensor([torch.nan, -0.0, torch.inf, 1.0]))
        with torch.no_grad():
            module.weight.fill_(torch.nan)
            module.bias.copy_(torch.tensor([-0.0, 0.0]))
        try:
            model = Parallel(module)
            state = {**replicas.buffers(model), "model": module.state_dict(), "note": [1, None, "x"]}
            replicas.check(engine, model, state, 1)
        except ReplicaError as error:
            return str(error)
    return ""


QUIET = {
    "ddp": (2, ["layout=ddp"]), "zero1": (2, ["layout=zero1"]), "fsdp": (2, ["layout=fsdp"]),
    "tp, sequence": (2, ["layout=tp", "layout.sequence_parallel=true"]), "pp": (2, ["layout=pp"]),
    "tp x ddp": (4, ["layout=tp"]), "tp x zero1": (4, ["layout=tp", "layout.data=zero1"]),
    "tp x fsdp": (4, ["layout=tp", "layout.data=fsdp"]), "tp 4": (4, ["layout=tp", "layout.tp=4"]),
    "pp 4": (4, ["layout=pp", "layout.pp=4"]), "pp x tp": (4, ["layout=pp", "layout.tp=2"]),
    "pp x ddp": (4, ["layout=pp"]), "pp x fsdp": (4, ["layout=pp", "layout.data=fsdp"]),
    "pp x zero1": (4, ["layout=pp", "layout.data=zero1"]),
}  # fmt: skip
WIDTHS = {
    "fp32": [],
    "bf16": ["train.precision=bf16", "train.stochastic_rounding=true"],
    "bf16_mixed": ["train.precision=bf16_mixed"],
}


@pytest.mark.parametrize(
    ("name", "width"),
    [
        pytest.param(
            name, width, id=f"{name}, {width}", marks=[] if processes == 2 and width != "fp32" else pytest.mark.slow
        )
        for name, (processes, _) in QUIET.items()
        for width in WIDTHS
    ],
)
def test_copies_that_agree_raise_no_alarm(name: str, width: str, tmp_path: Path) -> None:
    processes, words = QUIET[name]
    more = ["train.check_replicas_every=1", "model.dropout=0.1", *WIDTHS[width]]
    assert found(tmp_path / "run", processes, "weight", "", -1, *words, *more) == ""
    assert (tmp_path / "run" / "checkpoints" / "step-3").is_dir()


def test_one_process_says_that_there_is_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(resolve(load(), "megatron_gpt:tiny", [*TINY, "train.check_replicas_every=1"]), tmp_path / "run")
    assert (
        "train.check_replicas_every=1: one process has no copies of its weights to compare" in capsys.readouterr().out
    )
