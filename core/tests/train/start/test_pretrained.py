"""Models that another recipe's run makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core import Recipe, Use, hookimpl
from recipe_core.hooks.train import Train
from recipe_core.settings.job import Job
from recipe_core.testing import toy
from recipe_core.train.start import pretrained


class Pairs:
    """A plugin whose recipe is made for two processes."""

    @staticmethod
    @hookimpl
    def register_recipes() -> list[Recipe]:
        """A recipe that no single process can run."""
        return [
            Recipe(
                name="pairs", summary="toy on two processes", model=Use("toy_model"), data=Use("toy_data"),
                train=Train(steps=8, global_batch=8, micro_batch=4), problems=f"{__name__}:needs_two", processes=2,
            )
        ]  # fmt: skip


def needs_two(job: Job, processes: int) -> list[str]:
    """Refuse any other number, as the layouts that divide a model do."""
    return [] if processes == 2 else [f"takes 2 processes, and this run has {processes}"]


def test_a_recipe_is_checked_for_the_processes_that_it_is_made_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As ``recipe run NAME`` does, which is how it is run; one process would be refused."""
    monkeypatch.setattr(pretrained, "load", lambda: toy.registry(Pairs))
    assert pretrained.job_of("pairs").processes == 2
    assert pretrained._folder("pairs", tmp_path).name.startswith("trained-pairs-")
