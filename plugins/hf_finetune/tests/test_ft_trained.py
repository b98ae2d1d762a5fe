"""A model trained by another recipe, once per machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_core.errors import PluginError
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.start.pretrained import TrainingFailedError, trained


@pytest.mark.slow
def test_it_is_trained_once_and_continues_after_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a run of one process, also if one of several ranks starts it."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "RECIPE_STORE": "/none"}.items():
        monkeypatch.setenv(name, value)
    assert trained("bert_dp:tiny", tmp_path, lambda: "SIGTERM") is None  # the signal came before
    begun = list[Path]()

    def in_the_middle() -> bool:
        begun[:] = [path for path in tmp_path.glob("trained-*/metrics.jsonl") if len(read_rows(path)) > 2]
        return bool(begun)

    assert trained("bert_dp:tiny", tmp_path, in_the_middle) is None or begun
    out = trained("bert_dp:tiny", tmp_path, lambda: None)
    assert out is not None
    assert [row["step"] for row in read_rows(out / "metrics.jsonl") if "loss" in row] == list(range(1, 9))
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert trained("bert_dp:tiny", tmp_path, lambda: None) == out
    assert times == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_problems_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no recipe named 'nobody'"):
        trained("nobody", tmp_path, lambda: None)
    with pytest.raises(TrainingFailedError, match=r"recipe run bert_dp:tiny --out .*: ended with exit code 2"):
        fail(tmp_path)


def fail(tmp_path: Path) -> None:
    """The folder of the run holds something else."""
    from recipe_core.train.start import pretrained as module

    folder = module._folder("bert_dp:tiny", tmp_path)
    folder.mkdir(parents=True)
    (folder / "something").write_text("else")
    trained("bert_dp:tiny", tmp_path, lambda: None)
