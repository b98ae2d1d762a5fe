"""recipe precompile: what the dry run compiles, the run has no more to compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.cli import precompile
from recipe_core.cli.main import main
from recipe_core.engine.compiled import GraphCounter, TorchCompile, cache
from recipe_core.engine.machine import probe
from recipe_core.engine.machine.probe import compiles
from recipe_core.errors import ConfigError
from recipe_core.hooks.train import Train
from recipe_core.settings.job import Job
from recipe_core.testing import spawn, toy
from recipe_core.train.start.check import checked_job
from recipe_core.train.start.destination import require_run_folder

LINE = ["train.device=cpu", "train.compile=true", "train.steps=4", "train.eval_every=2", "model.dropout=0.0"]


def dry_run_then_run(folder: str) -> tuple[str, bool, dict[str, object]]:
    """In a process of its own: nothing is compiled in it yet."""
    from contextlib import redirect_stdout
    from io import StringIO

    from recipe_core.train.run import run

    said, place = StringIO(), Path(folder)
    job = checked_job(toy.registry(), "toy", precompile.dry_run_arguments(LINE), 1)
    with redirect_stdout(said):
        precompile.precompile(job, LINE, place / "run", 1)
    kept = any((place / "run").glob("**/step-*"))
    import torch

    torch._dynamo.reset()  # as in a new process, with the same cache
    run(checked_job(toy.registry(), "toy", LINE, 1), place / "run")
    return said.getvalue(), kept, json.loads((place / "run" / "results.json").read_text())


@pytest.mark.slow
def test_a_run_after_it_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    ((said, kept, results),) = spawn(dry_run_then_run, 1, str(tmp_path))
    assert f"kept in {tmp_path / 'compiled'}" in said
    assert " 0 compilations" not in said
    assert "loss" not in said  # no lines of steps
    assert not kept
    assert results["compilations"] == 0
    assert str(results["notes"]["torch.compile"]).endswith(", 0 compilations")  # type: ignore[index]


def test_a_dry_run_forgets_what_a_run_begins_with_and_is_held_to() -> None:
    words = precompile.dry_run_arguments(["train.golden=curve.jsonl", "train.init_from=required", "train.steps=50"])
    job = checked_job(toy.registry(), "toy", words, 1)
    assert (job.train.golden, job.train.init_from, job.train.resume) == (None, None, "none")
    assert (job.train.steps, job.train.stop_after, job.train.save_every) == (50, 2, 0)


def test_a_dry_run_in_a_run_folder_touches_nothing_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("job.yaml", "metrics.jsonl"):
        (tmp_path / name).write_text("of a run")
    places: list[Path] = []
    monkeypatch.setattr("recipe_core.train.dry_run.dry_run", lambda job, folder: places.append(folder))
    precompile.precompile(job_of(*LINE), LINE, tmp_path, 1)
    assert places == [tmp_path / "dry-run"]
    require_run_folder(tmp_path / "dry-run")  # a run may begin there, and in the one above


def job_of(*words: str) -> Job:
    return checked_job(toy.registry(), "toy", precompile.dry_run_arguments(words), 1)


def test_what_compiles_nothing_is_refused_with_the_way_out() -> None:
    for word, said in (("false", "false"), ("null", "null, which compiles large models on CUDA")):
        expected = f"^train.compile: {said}, and device cpu compiles nothing by itself; say train.compile=true$"
        with pytest.raises(ConfigError, match=expected):
            precompile.precompile(job_of("train.device=cpu", f"train.compile={word}"), [], None, 1)


@pytest.mark.parametrize(
    ("word", "parameters", "device", "compiler", "expected"),
    [
        (None, 50_000_000, "cuda", True, True),
        (None, 49_999_999, "cuda", True, False),
        (None, 50_000_000, "cuda", False, False),
        (None, 50_000_000, "cpu", True, False),
        (True, 1, "cpu", False, True),
        (False, 1 << 40, "cuda", True, False),
    ],
)
def test_what_is_compiled_unless_the_user_says(
    word: bool | None, parameters: int, device: str, compiler: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "find_spec", lambda name: name == "triton")
    monkeypatch.setattr(probe.shutil, "which", lambda name: name if compiler and name == "gcc" else None)
    monkeypatch.delenv("CC", raising=False)
    assert compiles(Train(compile=word), parameters, device) == expected
    monkeypatch.setenv("CC", "none-such")
    assert compiles(Train(compile=None), 1 << 40, "cuda") is False


def test_neurons_programs_are_counted_in_their_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    assert cache("neuron") == tmp_path
    (tmp_path / "old.neff").touch()
    counter = GraphCounter(TorchCompile("neuron"))
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "new.neff").touch()
    (tmp_path / "ab" / "other.txt").touch()
    assert counter.read().compiled == 1


def test_a_mistake_is_told_as_that_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precompile", "no_such_recipe"]) == 2
    assert "no recipe named 'no_such_recipe'" in capsys.readouterr().err
