"""Commands that read a run or a checkpoint at an address."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from remote_runs import ADDRESS, Machine

from recipe_core.checkpoint.manifest import FileEntry, Manifest
from recipe_core.checkpoint.remote import fetched as module
from recipe_core.checkpoint.remote.checkpoints import committed
from recipe_core.checkpoint.remote.fetched import fetched
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.testing.objects import ObjectServer
from recipe_core.testing.runs import typed

RUN = "runs/one"
Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    server: ObjectServer, here: Machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Typed:
    """Run a command in this process, with the variables that reach the server; the run at the address has ended."""
    here.train("train.save_every=2")
    for name, value in {**server.environment, **here.places}.items():
        monkeypatch.setenv(name, value)
    return typed(capfd)


def test_commands_take_an_address_for_a_run(run: Typed, here: Machine, tmp_path: Path) -> None:
    cache = here.folder / "cache/fetched"
    code, text = run("verify", ADDRESS)
    assert code == 0, text
    assert "no problem found" in text
    assert f"{ADDRESS}: 5 files, " in text
    (entry,) = cache.iterdir()
    assert sorted(path.name for path in (entry / "one/checkpoints").iterdir()) == ["step-4"]
    code, text = run("inspect", ADDRESS)
    assert code == 0, text
    assert "are downloaded" not in text
    for words in (
        ["convert", ADDRESS, tmp_path / "single", "--to", "single"],
        ["generate", ADDRESS, "--prompt", "1 2 3 4 5 6"],
        ["eval", ADDRESS],
        ["report", ADDRESS, "--out", tmp_path / "report.html"],
        ["compare", ADDRESS, here.working, "--no-png", "--tolerance", "0"],
    ):
        code, text = run(*words)
        assert code == 0, text
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_commands_take_an_address_for_a_checkpoint(run: Typed, tmp_path: Path) -> None:
    code, text = run("inspect", f"{ADDRESS}/checkpoints/step-2/")
    assert code == 0, text
    assert "step               2\n" in text
    code, text = run("inspect", f"{ADDRESS}/checkpoints")
    assert code == 0, text
    assert "step               4\n" in text


def test_a_checkpoint_that_is_not_committed_is_refused(
    run: Typed, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = server.buckets["bucket"].objects
    del objects[f"{RUN}/checkpoints/step-2/checkpoint.json"]
    code, text = run("generate", f"{ADDRESS}/checkpoints/step-2")
    assert code == 2
    assert f"{ADDRESS}/checkpoints/step-2: has no checkpoint.json, so it was not uploaded to its end" in text
    assert [name for name, _ in committed(Objects.at(ADDRESS))] == ["step-4"]
    del objects[f"{RUN}/checkpoints/step-4/checkpoint.json"]
    code, text = run("generate", ADDRESS)
    assert code == 2
    assert "latest.json says that step-4 was committed last, and its checkpoint.json is not there" in text
    monkeypatch.setenv("RECIPE_WORK", str(tmp_path / "elsewhere"))
    code, text = run("run", ADDRESS, "train.steps=6")
    assert code == 2
    assert "latest.json says that step-4 was committed last" in text


def test_an_old_list_does_not_hide_what_was_committed(run: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects.at(ADDRESS)
    assert [name for name, _ in committed(objects)] == ["step-4", "step-2"]
    monkeypatch.setattr(objects, "folders", lambda prefix: ["step-2"])
    assert [name for name, _ in committed(objects)] == ["step-4", "step-2"]


def test_nothing_at_an_address_is_said(run: Typed) -> None:
    code, text = run("eval", "s3://bucket/nothing")
    assert code == 2
    assert "s3://bucket/nothing: there is nothing; expected the address of a run, a checkpoint or a file" in text
    code, text = run("verify", "s3://bucket/runs")
    assert code == 2
    assert "s3://bucket/runs: expected the address of token files, a run or a checkpoint" in text


def test_a_manifest_cannot_name_files_outside(run: Typed, server: ObjectServer) -> None:
    manifest = Manifest.parse(server.content(f"{RUN}/checkpoints/step-4/checkpoint.json").decode())
    for name in ("../../../x", "/x"):
        hostile = replace(manifest, files={name: FileEntry(size=1, sha256="")})
        server.put(f"{RUN}/checkpoints/step-4/checkpoint.json", hostile.text().encode())
        code, text = run("verify", ADDRESS)
        assert code == 2
        assert f"checkpoint.json lists '{name}', which is outside of the checkpoint" in text


def test_the_cache_is_bounded(run: Typed, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    first = fetched(f"{ADDRESS}/checkpoints/step-2", lines.append)
    os.utime(first.parent, (0, 0))
    monkeypatch.setattr(module, "KEPT", 1)
    second = fetched(f"{ADDRESS}/checkpoints/step-4", lines.append)
    assert not first.exists()
    assert second.is_dir()  # in use
    assert len(lines) == 2
