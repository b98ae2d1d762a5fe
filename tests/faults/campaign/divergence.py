"""Batches whose loss is not a number: the run stops, skips the step, or goes back, as ``train.on_divergence`` says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cases import Family
from forked import curve, recipe

from recipe_core.checkpoint.formats.single import Single
from recipe_core.checkpoint.lazy import same_bits
from recipe_core.cli import main as cli
from recipe_core.testing import toy

BATCH = 8
STEPS = 8
WORDS = (
    "run", "toy", f"train.steps={STEPS}", f"train.global_batch={BATCH}", "train.log_every=1", "train.eval_every=0",
    "checkpoint=single", "model.dropout=0", "train.timeout=240",
)  # fmt: skip


@dataclass(frozen=True)
class Poison:
    """A step whose batch gives a loss that is not a number."""

    step: int
    """From 1."""
    promise: str
    layout: str
    processes: int
    micro_batch: int
    save_every: int
    pause: int
    """Stop after this many steps, then resume; 0: do not stop."""

    def __str__(self) -> str:
        return (
            f"{self.promise}, step {self.step}, {self.layout} on {self.processes}, micro batch {self.micro_batch}, "
            f"saved every {self.save_every}, paused after {self.pause}"
        )


def draw(chance: random.Random) -> Poison:
    """Draw any step but the first two, so that there is a checkpoint to return to."""
    processes = chance.choice((1, 2))
    layout = "single" if processes == 1 else chance.choice(("ddp", "fsdp", "zero1"))
    step, promise = chance.randint(3, STEPS), chance.choice(("stop", "skip", "rollback"))
    pause = 0 if promise == "stop" else chance.choice((0, 0, chance.randint(1, STEPS - 1)))
    return Poison(step, promise, layout, processes, chance.choice((1, 2, 4)), chance.choice((1, 2)), pause)


def use_toy() -> None:
    """Let the command see only the toy plugin, whose model can be poisoned."""
    setattr(cli, "load_plugins", toy.registry)  # noqa: B010 - mypy would reject an assignment


def runner(poison: Poison, folder: Path) -> Callable[..., str]:
    """Return a function that runs the toy with further arguments and returns what is wrong with its end."""
    shared = (
        *WORDS, f"layout={poison.layout}", f"train.micro_batch={poison.micro_batch}", "train.keep=0",
        f"train.save_every={poison.save_every}", "--processes", str(poison.processes),
    )  # fmt: skip

    def run(out: str, *words: str, code: int = 0) -> str:
        return recipe([*shared, *words, "--out", str(folder / out)], folder, patch=use_toy).ill(code)

    return run


def attempt(poison: Poison, base: Path, folder: Path) -> str:
    """Run with the poison, and without the samples that it costs: both are equal to the last bit."""
    run, first = runner(poison, folder), BATCH * (poison.step - 1)
    words = (f"model.poison_after={first}", f"model.poison_until={first + BATCH}")
    if poison.promise == "stop":
        ill = run("poisoned", *words, "train.on_divergence=stop", code=65)
        ill = ill or run("poisoned", *words, "train.on_divergence=skip")
    else:
        told = (*words, f"train.on_divergence={poison.promise}")
        ill = run("poisoned", *told, f"train.stop_after={poison.pause}") if poison.pause else ""
        ill = ill or run("poisoned", *told)
    if ill:
        return ill
    good = BATCH * ((poison.step - 1) // poison.save_every * poison.save_every)
    if poison.promise == "rollback" and poison.pause in range(poison.step):
        good = max(good, BATCH * poison.pause)  # it was saved when it paused
    left_out = good if poison.promise == "rollback" else first
    if ill := run("without", f"data.left_out={left_out},{first + BATCH - left_out}"):
        return f"the run without the samples: {ill}"
    return _difference(folder / "poisoned", folder / "without")


def _difference(one: Path, two: Path) -> str:
    curves = [[(row["step"], row["loss"], row["grad_norm"]) for row in curve(out)] for out in (one, two)]
    if curves[0] != curves[1]:
        return f"another curve: {curves[0]} and {curves[1]}"
    weights = [Single().open(out / "checkpoints" / f"step-{STEPS}")["model"] for out in (one, two)]
    same = all(same_bits(tensor.read(), weights[1][name].read()) for name, tensor in weights[0].items())
    return "" if same else "other weights"


FAMILY = Family("divergence", 1.5, draw, attempt)
