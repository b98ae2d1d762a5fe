"""Runs whose ``--out`` is an address: they end like local ones, whatever fails in between."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from remote_runs import ADDRESS, Hook, Machine

from recipe_core.checkpoint.manifest import NAME, Manifest
from recipe_core.testing.objects import Faults, ObjectServer
from recipe_core.testing.runs import run_tiny
from recipe_core.train.metrics.curves import read_rows

RUN = "runs/one"
SETTINGS = ("train.steps=6", "train.save_every=2", "train.keep=2")
TIMES = {"tokens_per_second", "sequences_per_second", "step_seconds", "seconds", "eta_seconds", "time", "memory_gb"}


def uploaded(server: ObjectServer) -> list[str]:
    return server.keys()


def losses(metrics: Path) -> list[dict[str, Any]]:
    rows = read_rows(metrics)
    return [{key: row[key] for key in ("step", "loss", "grad_norm", "val_loss") if key in row} for row in rows]


def uploaded_losses(server: ObjectServer, folder: Path) -> list[dict[str, Any]]:
    (folder / "uploaded.jsonl").write_bytes(server.content(f"{RUN}/metrics.jsonl"))
    return losses(folder / "uploaded.jsonl")


def hashes(manifest: Manifest) -> dict[str, str]:
    # .metadata names the folder that PyTorch wrote to
    return {name: entry.sha256 for name, entry in manifest.files.items() if name != ".metadata"}


def require_equal(server: ObjectServer, local: Path, folder: Path) -> None:
    """The run in the bucket has the rows and the checkpoints of the local one, byte for byte, and nothing more."""
    assert uploaded_losses(server, folder) == losses(local / "metrics.jsonl")
    found = [key for key in uploaded(server) if key.startswith(f"{RUN}/checkpoints/")]
    expected = []
    for path in (local / "checkpoints").iterdir():
        address = f"{RUN}/checkpoints/{path.name}"
        manifest = Manifest.parse(server.content(f"{address}/{NAME}").decode())
        assert hashes(manifest) == hashes(Manifest.read(path))
        for name, entry in manifest.files.items():
            assert sha256(server.content(f"{address}/{name}")).hexdigest() == entry.sha256
        expected += [f"{address}/{NAME}", *(f"{address}/{name}" for name in manifest.files)]
    assert found == sorted(expected)


ONE, TWO = (), ("--processes", "2")


@pytest.mark.parametrize("processes", [ONE, TWO], ids=["1", "2"])
def test_a_run_with_faults_ends_like_a_local_one(
    here: Machine, server: ObjectServer, tmp_path: Path, processes: tuple[str, ...]
) -> None:  # fmt: skip
    local = run_tiny("toy", tmp_path / "local", *SETTINGS, *processes)
    server.faults, server.page = Faults(seed=1, refuse=0.125, fail=0.125, cut=0.25, in_a_row=2), 1000
    text = here.train(*SETTINGS, *processes)
    assert f"{ADDRESS}: the working folder on this machine is {here.working}" in text
    assert min(server.faults.drawn[fault] for fault in ("refuse", "fail", "cut")) > 0
    require_equal(server, local.out, tmp_path)
    assert server.open_uploads == 0
    assert f"{RUN}/.recipe/lock.json" not in uploaded(server)
    for name in ("job.yaml", "results.json", "metrics.jsonl"):
        assert server.content(f"{RUN}/{name}") == (here.working / name).read_bytes()
    if processes:
        assert server.content(f"{RUN}/logs/rank-0.log") == (here.working / "logs/rank-0.log").read_bytes()


@pytest.mark.parametrize(("processes", "elsewhere"), [(ONE, False), (ONE, True), (TWO, True)])
def test_a_run_that_is_killed_in_an_upload_goes_on(
    machines: Callable[[str], Machine],
    server: ObjectServer,
    tmp_path: Path,
    processes: tuple[str, ...],
    elsewhere: bool,
) -> None:
    local = run_tiny("toy", tmp_path / "local", *SETTINGS, *processes)
    first = machines("first")

    def kill() -> None:
        holder = json.loads(server.content(f"{RUN}/.recipe/lock.json"))
        os.kill(holder["process"]["pid"], signal.SIGKILL)
        os.kill(json.loads((first.working / "launch/process.json").read_text())["pid"], signal.SIGKILL)

    server.faults = Hook(text=f"PUT /bucket/{RUN}/checkpoints/step-4/__0_0", action=kill)
    code, text = first.run("run", "toy:tiny", "--out", ADDRESS, *SETTINGS, *processes)
    assert code == -signal.SIGKILL, text
    assert f"{RUN}/checkpoints/step-4/upload.json" in uploaded(server)
    assert f"{RUN}/checkpoints/step-4/{NAME}" not in uploaded(server)
    second = machines("second") if elsewhere else first
    text = second.train(*SETTINGS, *processes)
    assert "which has ended or is silent, is taken over" in text
    assert f"continuing after step {2 if elsewhere else 4}" in text
    require_equal(server, local.out, tmp_path)


def test_a_rank_whose_upload_fails_ends_all(here: Machine, server: ObjectServer) -> None:
    def remove_file() -> None:
        (here.working / "checkpoints/step-4/__1_0.distcp").unlink()

    server.faults = Hook(text=f"PUT /bucket/{RUN}/checkpoints/step-4/upload.json", action=remove_file)
    code, text = here.run("run", "toy:tiny", "--out", ADDRESS, *SETTINGS, *TWO)
    assert code == 2
    assert text.count("was not uploaded; earlier checkpoints are untouched") == 1
    assert f"{ADDRESS}/checkpoints/step-4" in text
    assert "__1_0.distcp" in text
    assert "Traceback" not in text
    assert f"{RUN}/checkpoints/step-4/{NAME}" not in uploaded(server)
    assert f"{RUN}/.recipe/lock.json" not in uploaded(server)
    text = here.train(*SETTINGS, *TWO)
    assert "continuing after step 2" in text
    assert json.loads(server.content(f"{RUN}/.recipe/latest.json")) == {"step": 6}


def test_a_run_goes_on_by_its_address_alone(machines: Callable[[str], Machine], server: ObjectServer) -> None:
    first, second = machines("first"), machines("second")
    first.train("train.save_every=1", "train.keep=3")
    code, text = second.run("run", ADDRESS, "train.steps=6")
    assert code == 0, text
    assert "continuing after step 4" in text
    steps = {key.split("/")[3] for key in uploaded(server) if key.startswith(f"{RUN}/checkpoints/")}
    assert steps == {"step-4", "step-5", "step-6"}
    assert not (second.working / "checkpoints/step-3").exists()
    text = first.train("train.save_every=1", "train.keep=3", "train.steps=7")
    assert "the run went on elsewhere" in text
    assert "continuing after step 6" in text
    assert [row["step"] for row in uploaded_losses(server, first.folder) if "loss" in row] == [1, 2, 3, 4, 5, 6, 7]


def test_a_damaged_file_on_this_machine_is_downloaded_again(here: Machine, server: ObjectServer) -> None:
    here.train()
    (here.working / "checkpoints/step-4/__0_0.distcp").write_bytes(b"damaged")
    assert "continuing after step 4" in here.train("train.steps=6")
    server.faults = Faults()
    (here.working / "checkpoints/step-6/__0_0.distcp").unlink()
    assert "nothing is left to do" in here.train("train.steps=6")


def test_the_working_folder_stands_for_the_address(here: Machine, server: ObjectServer) -> None:
    here.train()
    code, text = here.run("run", str(here.working), "train.steps=6")
    assert code == 0, text
    assert f"{ADDRESS}: the working folder on this machine is {here.working}" in text
    assert json.loads(server.content(f"{RUN}/.recipe/latest.json")) == {"step": 6}


def test_the_last_checkpoint_is_uploaded_even_if_no_step_is_left(here: Machine, server: ObjectServer) -> None:
    def remove_file() -> None:
        (here.working / "checkpoints/step-4/job.yaml").rename(here.folder / "job.yaml")

    server.faults = Hook(text=f"PUT /bucket/{RUN}/checkpoints/step-4/upload.json", action=remove_file)
    code, text = here.run("run", "toy:tiny", "--out", ADDRESS)
    assert code == 2, text
    (here.folder / "job.yaml").rename(here.working / "checkpoints/step-4/job.yaml")
    assert f"{RUN}/.recipe/latest.json" not in uploaded(server)
    assert "nothing is left to do" in here.train()
    assert json.loads(server.content(f"{RUN}/.recipe/latest.json")) == {"step": 4}
    code, text = here.run("verify", ADDRESS)
    assert code == 0, text


def test_a_return_after_a_divergence_removes_later_checkpoints(here: Machine, server: ObjectServer) -> None:
    diverges = ("model.poison_after=40", "model.poison_until=48", "train.on_divergence=rollback")
    here.train(*diverges, "train.steps=8", "train.save_every=2", "train.keep=0")
    steps = {key.split("/")[3] for key in uploaded(server) if "/checkpoints/" in key}
    assert steps == {"step-2", "step-4", "step-6", "step-8"}
    assert [row["step"] for row in uploaded_losses(server, here.folder) if "loss" in row] == list(range(1, 9))


def test_objects_of_others_stay(here: Machine, server: ObjectServer) -> None:
    here.train("train.save_every=1", "train.keep=1", "train.stop_after=2")
    server.put(f"{RUN}/checkpoints/step-2/mine", b"mine")
    server.put(f"{RUN}/checkpoints/step-9/half", b"of another upload")
    here.train("train.save_every=1", "train.keep=1")
    steps = [key for key in uploaded(server) if "/checkpoints/" in key and "step-4" not in key]
    assert steps == [f"{RUN}/checkpoints/step-2/mine", f"{RUN}/checkpoints/step-9/half"]
