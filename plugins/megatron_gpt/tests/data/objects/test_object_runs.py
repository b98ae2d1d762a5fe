"""Runs on token files in object storage equal those on local files, whatever the network does."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from recipe_core.testing import command, run_tiny
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.testing.objects import Faults, ObjectServer
from recipe_core.testing.runs import Finished
from recipe_core.train.metrics.curves import read_rows

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'recipe-core[s3]'")
SIZES = Random(1).choices(range(1, 400), k=300)
WORDS = ("train.steps=6", "train.save_every=3", "train.keep=0", "train.eval_every=3")
FAULTS = {"refuse": 0.1, "fail": 0.05, "cut": 0.1, "delay": 0.1, "seconds": 0.02}


def figures(run: Finished) -> list[tuple[Any, ...]]:
    return [tuple(row.get(name) for name in ("step", "loss", "grad_norm", "valid_loss")) for row in run.rows]


def run(out: Path, *words: str) -> Finished:
    # not run_tiny, whose ranks are forks: obstore does not work in a fork of a process that has used it
    ended = command("run", "megatron_gpt:tiny", *words, "--out", str(out))
    assert ended.returncode == 0, ended.stdout
    return Finished(out, read_rows(out / "metrics.jsonl"), {}, ended.stdout)


def same_state(first: Finished, second: Finished) -> bool:
    return equal(*(tensors(run.out / "checkpoints" / "step-6") for run in (first, second)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_equals_one_on_local_files(ranks: int, sets: Any, server: ObjectServer, tmp_path: Path) -> None:
    prefix = sets.write("tokens", SIZES)
    layout = ("layout=ddp", "--processes", str(ranks)) if ranks > 1 else ()
    local = run_tiny("megatron_gpt", tmp_path / "local", f"data.files={prefix}", *WORDS, *layout)
    server.faults = Faults(seed=ranks, **FAULTS)
    remote = run(tmp_path / "remote", "data.files=s3://bucket/data/tokens", *WORDS, *layout)
    assert figures(remote) == figures(local)
    assert same_state(remote, local)
    assert min(server.faults.drawn[kind] for kind in ("refuse", "cut", "delay")) > 0


def test_a_run_continues_on_the_same_data_in_a_bucket(sets: Any, server: ObjectServer, tmp_path: Path) -> None:
    prefix = sets.write("tokens", SIZES)
    whole = run_tiny("megatron_gpt", tmp_path / "whole", f"data.files={prefix}", *WORDS)
    out = tmp_path / "parts"
    run_tiny("megatron_gpt", out, f"data.files={prefix}", *WORDS, "train.stop_after=3")
    server.faults = Faults(seed=5, **FAULTS)
    parts = run_tiny("megatron_gpt", out, "data.files=s3://bucket/data/tokens", *WORDS)
    assert figures(parts)[-3:] == figures(whole)[-3:]
    assert same_state(parts, whole)


def test_a_run_on_other_data_is_refused(sets: Any, tmp_path: Path) -> None:
    prefix = sets.write("tokens", SIZES)
    sets.write("others", SIZES, seed=1)
    out = tmp_path / "run"
    run_tiny("megatron_gpt", out, f"data.files={prefix}", *WORDS, "train.stop_after=3")
    refused = command("run", "megatron_gpt:tiny", "data.files=s3://bucket/data/others", *WORDS, "--out", str(out))
    assert refused.returncode == 2
    assert "the data: digest" in refused.stdout


def test_an_object_that_changes_ends_the_run(sets: Any, server: ObjectServer, tmp_path: Path) -> None:
    sets.write("tokens", SIZES)
    changed = server.content("data/tokens.bin")[::-1]

    class Changes(Faults):
        def draw(self, request: str) -> Any:
            # the identity of the data was read, and training has begun
            if "tokens.bin" in request and len(server.requests) > 60:
                server.put("data/tokens.bin", changed)
            return "none"

    server.faults = Changes()
    words = ("data.files=s3://bucket/data/tokens", "train.steps=40", "train.eval_every=0")
    ended = command("run", "megatron_gpt:tiny", *words, "--out", str(tmp_path / "run"))
    assert ended.returncode == 2, ended.stdout
    assert "s3://bucket/data/tokens.bin: has changed since it was opened" in ended.stdout
    assert "Traceback" not in ended.stdout


@pytest.mark.parametrize(
    ("files", "environment", "message"),
    [
        ("s3://other/data", {}, "s3://other/data: there is no bucket 'other' at http://127.0.0.1:"),
        ("s3://bucket/none", {}, "s3://bucket/none.idx: not found, and none.bin neither; data.files takes addresses"),
        ("s3://bucket/none/*", {}, "s3://bucket/none/*: no token files (.bin and .idx) match this pattern"),
        ("s3://bucket/data", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot be reached (no connection"),
        ("s3://bucket/data", {"AWS_ACCESS_KEY_ID": "x"}, "s3://bucket/data: access was denied (403 AccessDenied)"),
        ("https://host/data", {}, "data.files: expected a path on this machine, got 'https://host/data'"),
    ],
)
@pytest.mark.parametrize("word", ["check", "run"])
def test_mistakes(word: str, files: str, environment: dict[str, str], message: str, sets: Any, tmp_path: Path) -> None:
    sets.write("tokens", SIZES)
    out = ("--out", str(tmp_path / "run")) if word == "run" else ()
    refused = command(word, "megatron_gpt:tiny", f"data.files={files}", *out, **environment)
    assert refused.returncode == 2, refused.stdout
    assert message in refused.stdout
    assert "Traceback" not in refused.stdout


def test_a_cut_object_is_refused(sets: Any, server: ObjectServer) -> None:
    sets.write("tokens", SIZES)
    content = server.content("data/tokens.bin")
    server.put("data/tokens.bin", content[:-10])
    refused = command("run", "megatron_gpt:tiny", "data.files=s3://bucket/data/tokens")
    assert refused.returncode == 2
    assert f"s3://bucket/data/tokens.bin: cut off after {len(content) - 10:,} bytes" in refused.stdout


def test_check_inspect_and_verify(sets: Any, server: ObjectServer) -> None:
    prefix = sets.write("tokens", SIZES)
    checked = command("check", "megatron_gpt:tiny", "data.files=s3://bucket/data/tokens")
    assert checked.returncode == 0, checked.stdout
    for word, places in (("inspect", "s3://bucket/data"), ("verify", "s3://bucket/data/tokens")):
        remote, local = command(word, places), command(word, str(prefix.parent if word == "inspect" else prefix))
        assert remote.returncode == local.returncode == 0, remote.stdout
        assert remote.stdout.replace("s3://bucket/data", "X") == local.stdout.replace(str(prefix.parent), "X") or (
            word == "verify" and "no problem found" in remote.stdout
        )
    server.put("data/tokens.bin", server.content("data/tokens.bin") + b"12")
    found = command("verify", "s3://bucket/data")
    assert found.returncode == 1
    assert "s3://bucket/data/tokens.bin: holds" in found.stdout


@pytest.mark.slow
def test_an_outage_ends_all_ranks_with_one_message(sets: Any, server: ObjectServer, tmp_path: Path) -> None:
    sets.write("tokens", SIZES * 10)

    class Outage(Faults):
        def draw(self, request: str) -> Any:
            return "refuse" if "tokens.bin" in request and len(server.requests) > 400 else "none"

    server.faults = Outage()
    words = ("data.files=s3://bucket/data/tokens", "train.steps=200", "layout=ddp", "--processes", "2")
    ended = command("run", "megatron_gpt:tiny", *words, "--out", str(tmp_path / "run"))
    assert ended.returncode == 75, ended.stdout  # the same command continues
    assert (
        ended.stdout.count("s3://bucket/data/tokens.bin: the storage did not deliver it (503 SlowDown, 10 tries") == 1
    )
