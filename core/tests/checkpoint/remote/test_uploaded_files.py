"""Files in object storage: uploaded in parts, copied when they change."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from remote_runs import ADDRESS

from recipe_core.checkpoint.remote import lock, mirror
from recipe_core.checkpoint.remote.mirror import Mirror, mirrored
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.files.objects import ObjectError, transfers
from recipe_core.testing.objects import Faults, ObjectServer

PART = 5 << 20
"""S3's smallest part."""
RUN = "runs/one"


@pytest.fixture
def there(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """The objects of a run, with small parts."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(transfers, "_PART", PART)
    monkeypatch.setattr(transfers, "_AT_A_TIME", 1 << 20)
    return Objects.at(ADDRESS)


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 7])
def test_a_file_comes_back_as_it_was(there: Objects, server: ObjectServer, tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    server.faults = Faults(seed=size, refuse=0.25, cut=0.25, in_a_row=2)
    there.upload("file", tmp_path / "file")
    assert server.content(f"{RUN}/file") == content
    assert server.open_uploads == 0
    there.download("file", tmp_path / "copies/file", size)
    assert (tmp_path / "copies/file").read_bytes() == content
    with pytest.raises(ObjectError, match=f"has {size:,} bytes, and {size + 1:,} were expected"):
        there.download("file", tmp_path / "copies/file", size + 1)


def test_an_upload_that_is_no_longer_wanted_ends_and_leaves_nothing(
    there: Objects, server: ObjectServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(4 * PART))
    calls = iter([None, None, KeyError("enough")])

    def check() -> None:
        if (error := next(calls)) is not None:
            raise error

    with pytest.raises(KeyError, match="enough"):
        there.upload("file", tmp_path / "file", check)
    assert server.keys() == []
    assert server.open_uploads == 0


def test_only_what_changed_is_copied(there: Objects, server: ObjectServer, tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "logs/rank-0.log", "checkpoints/step-1/state", ".lock", ".metrics.jsonl.x.part"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    copies = Mirror(there, tmp_path)
    copies.copy()
    assert server.keys() == [f"{RUN}/logs/rank-0.log", f"{RUN}/metrics.jsonl"]
    server.requests.clear()
    copies.copy()
    assert server.requests == []
    (tmp_path / "metrics.jsonl").write_text("more")
    (tmp_path / "logs/rank-0.log").unlink()
    copies.copy()
    assert server.keys() == [f"{RUN}/metrics.jsonl"]
    assert server.content(f"{RUN}/metrics.jsonl") == b"more"


def test_a_storage_that_fails_for_a_while_ends_nothing(
    there: Objects, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "INTERVAL", 0.01)
    (tmp_path / "metrics.jsonl").write_text("rows")
    token = lock.acquire(there, tmp_path, lambda text: None)
    failing, warned, copied = [True], threading.Event(), threading.Event()
    upload, lines = there.upload, list[str]()

    def sometimes(name: str, file: Path) -> None:
        if failing[0]:
            raise ObjectError("no")
        upload(name, file)
        copied.set()

    def warn(text: str) -> None:
        lines.append(text)
        failing[0] = False
        warned.set()

    monkeypatch.setattr(there, "upload", sometimes)
    with mirrored(there, tmp_path, token, warn):
        assert warned.wait(60)
        assert copied.wait(60)
    assert lines == [f"{ADDRESS}: metrics and logs are not copied for now, and tried again: no"]
    assert server.content(f"{RUN}/metrics.jsonl") == b"rows"
