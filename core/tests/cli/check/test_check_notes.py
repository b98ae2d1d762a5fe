"""Notes of ``recipe check`` on settings that are slow on the device of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.cli import show
from recipe_core.cli.check.target import Target
from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.train.start.check.machine import Memory

HOST, GPU = Memory(8 << 30, "this machine", shared=True), Memory(8 << 30, "one GPU", shared=False)
COMPILE, FP8 = "train.compile: a CPU compiles the whole model", "train.precision: a CPU emulates fp8"


def notes(*arguments: str, target: Target | None = None) -> str:
    return show.needs(resolve(toy.registry(), "toy", arguments), 1, Path(), target=target)


@pytest.mark.parametrize(
    ("arguments", "available", "target", "noted"),
    [
        (("train.device=auto",), HOST, None, True),
        (("train.device=cpu",), GPU, None, True),
        (("train.device=cpu",), GPU, Target(), True),
        (("train.device=auto",), GPU, None, False),
        (("train.device=auto",), HOST, Target(), False),
    ],
)
def test_compilation_and_fp8_on_a_cpu_have_a_note(
    arguments: tuple[str, ...], available: Memory, target: Target | None, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "memory", lambda device: available)
    text = notes(*arguments, "train.compile=true", "train.precision=fp8", target=target)
    assert (COMPILE in text, FP8 in text) == (noted, noted)
    assert "note" not in notes(*arguments, target=target)
