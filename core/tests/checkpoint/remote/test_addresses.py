"""Addresses as ``--out``: what is refused before work begins, and the lock."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from remote_runs import ADDRESS, Machine

from recipe_core.checkpoint.remote import lock, record
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.checkpoint.remote.opened import opened
from recipe_core.errors import ConfigError, DiskError
from recipe_core.launch.process import this_process
from recipe_core.testing.objects import ObjectServer
from recipe_core.testing.runs import typed

RUN = "runs/one"
Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    server: ObjectServer, here: Machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Typed:
    """Run a command in this process, with the variables that reach the server."""
    for name, value in {**server.environment, **here.places}.items():
        monkeypatch.setenv(name, value)
    return typed(capfd)


def test_a_missing_bucket_is_said_before_work_begins(run: Typed) -> None:
    code, text = run("run", "toy:tiny", "--out", "s3://other/run")
    assert code == 2
    assert text.startswith("recipe run: --out: a small object could not be written, read and deleted below s3://other/")
    assert "there is no bucket 'other'" in text


def test_wrong_credentials_are_said_before_work_begins(run: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    code, text = run("run", "toy:tiny", "--out", ADDRESS)
    assert code == 2
    assert "access was denied" in text
    assert text.count("\n") == 1


def test_an_address_that_holds_something_else_is_refused(run: Typed, server: ObjectServer) -> None:
    server.put(f"{RUN}/photo.jpg", b"mine")
    code, text = run("run", "toy:tiny", "--out", ADDRESS)
    assert code == 2
    assert f"{ADDRESS} is not empty and holds no run (photo.jpg)" in text
    assert server.keys() == [f"{RUN}/photo.jpg"]
    assert "expected a name after the bucket: s3://bucket/NAME" in run("run", "toy:tiny", "--out", "s3://bucket")[1]


def test_an_address_without_a_run_cannot_be_continued(run: Typed, server: ObjectServer) -> None:
    code, text = run("run", ADDRESS)
    assert code == 2
    assert f"{ADDRESS}: there is no run" in text
    assert server.keys() == []
    assert "is not s3://bucket/runs/one, the run to continue" in run("run", ADDRESS, "--out", "elsewhere")[1]


def test_a_return_to_an_earlier_step_is_refused(run: Typed, server: ObjectServer, here: Machine) -> None:
    code, text = run("run", "toy:tiny", "--out", ADDRESS, "train.resume=step-2")
    assert code == 2
    assert f"train.resume: step-2 is only possible in a folder on this machine, and --out is {ADDRESS}" in text
    assert server.keys() == []  # nothing is left of a run that did not begin
    assert list((here.folder / "work").iterdir()) == []


def test_the_check_of_a_run_takes_its_address(run: Typed, server: ObjectServer) -> None:
    code, text = run("check", "toy:tiny", "--out", ADDRESS)
    assert code == 0, text
    assert server.requests == []


def test_a_missing_package_is_named(run: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setenv("AWS_REGION", "another")  # a client that no test has made
    code, text = run("run", "toy:tiny", "--out", ADDRESS)
    assert code == 2
    assert "pip install 'recipe-core[s3]'" in text


def test_other_commands_refuse_addresses(run: Typed) -> None:
    code, text = run("precompile", "toy", "--out", ADDRESS)
    assert code == 2
    assert "expected a path on this machine" in text


def test_the_address_of_a_run_stands_for_its_working_folder(run: Typed, here: Machine) -> None:
    for words in (["status"], ["logs"], ["stop"]):
        code, text = run(*words, ADDRESS)
        assert code == 2
        assert f"{ADDRESS}: has no working folder on this machine (looked for {here.folder / 'work'}/one-" in text
    here.train("train.steps=2")
    code, text = run("status", f"{ADDRESS}/")
    assert (code, text.partition("\n")[0]) == (0, f"{here.working}: finished (exit code 0)")


def test_two_runs_at_one_address_are_refused(run: Typed, server: ObjectServer, here: Machine) -> None:
    with opened(ADDRESS, lambda text: None) as folder:
        assert folder == here.working
        code, text = run("run", "toy:tiny", "--out", ADDRESS)
        assert code == 2
        assert f"{ADDRESS}: another process trains there: process {os.getpid()} of " in text
        assert f"if you delete {ADDRESS}/.recipe/lock.json" in text
    assert f"{RUN}/.recipe/lock.json" not in set(server.keys())


def test_a_silent_lock_is_taken_over_and_its_former_holder_writes_nothing_more(
    run: Typed, server: ObjectServer
) -> None:
    objects, lines = Objects.at(ADDRESS), list[str]()
    with pytest.raises(DiskError, match="holds its lock"), opened(ADDRESS, lines.append) as folder:  # noqa: PT012
        former = record.read(folder)
        assert former is not None
        holder = lock.holder_of(objects)
        assert holder is not None
        elsewhere = replace(this_process(), host="another", boot="another")
        silent = replace(holder, renewed=time.time() - lock.STALE - 1, process=elsewhere)
        server.put(f"{RUN}/.recipe/lock.json", silent.text())
        token = lock.acquire(objects, folder, lines.append)
        assert f"{ADDRESS}: the lock of process {os.getpid()} of another" in lines[-1]
        assert not lock.renew(objects, former.lock)
        assert lock.renew(objects, token)
        (folder / "metrics.jsonl").write_text("of the former holder")
    assert f"{RUN}/metrics.jsonl" not in set(server.keys())
    assert lock.holder_of(objects) is not None  # it was not released by the former holder


def test_a_live_lock_of_another_machine_stays(run: Typed, server: ObjectServer, tmp_path: Path) -> None:
    elsewhere = replace(this_process(), host="another", boot="another")
    holder = lock.Holder(token="theirs", folder="there", process=elsewhere, renewed=time.time())
    server.put(f"{RUN}/.recipe/lock.json", holder.text())
    with pytest.raises(ConfigError, match=r"process \d+ of another \(last sign of life"):
        lock.acquire(Objects.at(ADDRESS), tmp_path, lambda text: None)
    server.put(f"{RUN}/.recipe/lock.json", b"damaged")
    with pytest.raises(ConfigError, match="an unknown process"):
        lock.acquire(Objects.at(ADDRESS), tmp_path, lambda text: None)


def test_an_emptied_address_is_not_taken_for_a_new_run(run: Typed, server: ObjectServer, here: Machine) -> None:
    with opened(ADDRESS, lambda text: None) as folder:
        (folder / "checkpoints/step-2").mkdir(parents=True)
    for key in server.keys():  # noqa: SIM118 - a server is no mapping
        del server.buckets["bucket"].objects[key]
    code, text = run("run", "toy:tiny", "--out", ADDRESS)
    assert code == 2
    assert f"{ADDRESS} is empty, and its working folder {here.working} has checkpoints" in text


def test_the_owner_is_the_folder_that_wrote_last(run: Typed, server: ObjectServer) -> None:
    with opened(ADDRESS, lambda text: None) as folder:
        known = record.read(folder)
        (folder / "job.yaml").write_text("first: 1\n")
    assert known is not None
    assert json.loads(server.content(f"{RUN}/.recipe/owner.json")) == {"working": known.working}
    server.put(f"{RUN}/.recipe/owner.json", json.dumps({"working": "another"}).encode())
    server.put(f"{RUN}/job.yaml", b"second: 2\n")
    lines: list[str] = []
    with opened(ADDRESS, lines.append) as folder:
        assert (folder / "job.yaml").read_text() == "second: 2\n"
    assert "the run went on elsewhere" in lines[0]
    (former,) = folder.parent.glob("*.former")
    assert (former / "job.yaml").read_text() == "first: 1\n"
