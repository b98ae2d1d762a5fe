"""Parts of a preparation as tasks of a real Ray: bytes, killed workers, an address that does not answer, Ctrl-C."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.slow
TEXTS = [
    f"Document {number} is about {['rain', 'snow', 'fog'][number % 3]} in {number * 7} places." * 40
    for number in range(400)
]
LINE = ("gpt_indexed", "inputs=lines.jsonl,packed.jsonl.gz", "tokenizer=whole/tokenizer.json", "engine=tokenizers")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with texts, a tokenizer, and the tokens of one process."""
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RECIPE_PLUGINS", "megatron_gpt,ray")
        lines = [json.dumps({"text": text}) for text in TEXTS]
        Path("lines.jsonl").write_text("\n".join(lines))
        Path("packed.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[:20]).encode(), mtime=0))
        recipe("prepare", LINE[0], LINE[1], "vocab_size=400", "output=whole")
        recipe("prepare", *LINE, "workers=1", "output=alone")
        yield folder


def recipe(*words: str, code: int = 0) -> str:
    """Run the command; return what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "recipe_core.cli", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


def same(output: str) -> None:
    files = {path.name: path.read_bytes() for path in Path(output).iterdir()}
    assert files == {path.name: path.read_bytes() for path in Path("alone").iterdir()}
    assert list(Path().glob(f"*{output}.*")) == []


def until(condition: Callable[[], object], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.05)


def processes_of(part: str) -> list[int]:
    """The processes that make a part."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"part={part}".encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def address() -> Iterator[str]:
    """A cluster of 4 CPUs on this machine."""
    import ray

    context = ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


def test_a_ray_of_its_own(site: Path) -> None:
    said = recipe("prepare", *LINE, "output=own", "--on", "ray", "--parts", "3")
    assert "3 of 3 parts" in said
    same("own")


def test_a_worker_that_is_killed_twice(site: Path, address: str) -> None:
    """The worker of Ray, not our process in it: that one ends with the worker."""
    words = [sys.executable, "-m", "recipe_core.cli", "prepare", *LINE, "output=killed"]
    making = subprocess.Popen([*words, "--on", f"ray:{address}", "--parts", "4"], stderr=subprocess.PIPE, text=True)
    killed: list[int] = []
    for _ in range(2):
        until(lambda: [one for one in processes_of("2/4") if one not in killed] or making.poll() is not None)
        part = next(one for one in processes_of("2/4") if one not in killed)
        worker = int(Path(f"/proc/{part}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        killed.append(part)
        until(lambda part=part: part not in processes_of("2/4"))  # type: ignore[misc]
    _, said = making.communicate(timeout=400)
    assert making.returncode == 0, said
    assert "part 2/4: lost: " in said
    assert "it starts again (start 3 of at most 4)" in said
    same("killed")


def test_ctrl_c_ends_the_parts(site: Path) -> None:
    words = [sys.executable, "-m", "recipe_core.cli", "prepare", *LINE, "output=interrupted"]
    making = subprocess.Popen([*words, "--on", "ray", "--parts", "3"], stderr=subprocess.PIPE, text=True)
    until(lambda: processes_of("1/3"))
    making.send_signal(signal.SIGINT)
    _, said = making.communicate(timeout=100)
    assert making.returncode == 130, said
    assert "interrupted.parts keeps the parts, and the same command makes only the others" in said
    until(lambda: not processes_of("1/3"))
    recipe("prepare", *LINE, "output=interrupted", "--on", "ray", "--parts", "3")
    same("interrupted")


def test_an_address_that_does_not_answer(site: Path) -> None:
    said = recipe("prepare", *LINE, "output=nowhere", "--on", "ray:127.0.0.1:1", "--parts", "2", code=2)
    assert "--on ray:127.0.0.1:1: no Ray cluster can be reached there (" in said
    assert "Traceback" not in said
