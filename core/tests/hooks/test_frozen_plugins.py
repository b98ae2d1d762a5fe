"""Plugins that were written for API 1 run with this core, unchanged.

Never edit the files in frozen_api_1: users do not edit their plugins when the core changes. If a test here fails, fix
the core. A later version of the interface gets a folder of its own next to this one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch

from recipe_core.checkpoint.adapter import to_foreign, to_native
from recipe_core.checkpoint.lazy import lazy
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.specs import Dataset
from recipe_core.hooks.specs import load as target
from recipe_core.settings.job import Job
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

FOLDER = Path(__file__).parent / "frozen_api_1"
PLUGINS = ("frozen_line", "frozen_place", "frozen_step")
FROZEN = {
    "frozen_line.py": "1766daaa03b2d75a",
    "frozen_line_parts.py": "a16d2b7b69c5ffa6",
    "frozen_place.py": "27c7b1069041e192",
    "frozen_place_parts.py": "cc9b3cb2db6d9c67",
    "frozen_step.py": "60aadf161f419b1a",
    "frozen_step_parts.py": "27c2cf195488411e",
}
"""The first 16 digits of the SHA-256 of each file."""
LAYOUTS = {
    "fsdp": ["layout=fsdp"],
    "tp": ["layout=tp"],
    "sequence": ["layout=tp", "layout.sequence_parallel=true"],
    "pp": ["layout=pp"],
}
"""Extra arguments of the runs on two processes."""


def plugins() -> Registry:
    """Return the registry of the core and the frozen plugins."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    modules = {"core": "recipe_core.plugin", **{name: name for name in PLUGINS}}
    registry = load([(name, lambda module=module: importlib.import_module(module)) for name, module in modules.items()])  # type: ignore[misc]
    assert registry.broken == {}
    return registry


def job(*words: str, processes: int = 1) -> Job:
    return checked_job(plugins(), "frozen:tiny", words, processes, disk=False)


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_rows(folder / METRICS) if "loss" in row}


def ranks(folder: str) -> None:
    """Body of each of two processes."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    store = os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(LAYOUTS.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        run(job("train.steps=3", "train.eval_every=0", *words, processes=2), Path(folder, name))
        _clear_sharding_prop_cache()  # or DTensor reuses meshes of this run, whose groups are destroyed


def test_they_are_as_they_were() -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in FOLDER.glob("*.py")}
    assert digests == FROZEN, "never edit a frozen plugin: fix the core, so that it runs as it was"


def test_a_model_and_a_dataset_train_and_resume(tmp_path: Path) -> None:
    assert run(job(), tmp_path / "whole")["step"] == 6
    run(job("train.stop_after=3"), tmp_path / "cut")
    results = run(job(), tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert losses(tmp_path / "whole")[6] < losses(tmp_path / "whole")[1]
    stored = json.loads((tmp_path / "cut" / "results.json").read_text(encoding="utf-8"))
    assert (stored["notes"], stored["ranks"], results["step"]) == ({"width": "8"}, 1, 6)


def test_a_layout_and_a_format_are_used(tmp_path: Path) -> None:
    run(job(), tmp_path / "whole")
    words = ("layout=frozen_plain", "layout.remark=hello", "checkpoint=frozen_box", "checkpoint.stem=case")
    run(job(*words, "train.stop_after=3"), tmp_path / "own")
    assert (tmp_path / "own" / "checkpoints" / "step-3" / "case.frozen_box").is_file()
    run(job(*words), tmp_path / "own")
    assert losses(tmp_path / "own") == losses(tmp_path / "whole")


def test_an_optimizer_a_schedule_a_loss_and_a_tracker_are_used(tmp_path: Path) -> None:
    own = ("optimizer=frozen_descent", "schedule=frozen_halves", "loss=frozen_scaled", "loss.factor=3")
    words = (*own, "train.trackers=frozen_diary", "tracker.frozen_diary.name=notes.txt", "train.lr=0.5")
    run(job(), tmp_path / "plain")
    run(job(*words), tmp_path / "own")
    rows = [row for row in read_rows(tmp_path / "own" / METRICS) if "lr" in row]
    assert [row["lr"] for row in rows] == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert rows[0]["loss"] == pytest.approx(3 * losses(tmp_path / "plain")[1], rel=1e-6)
    lines = (tmp_path / "own" / "notes.txt").read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1]) == ("frozen:tiny after 0", "closed")
    assert any(line.startswith("6 ") and "train/loss" in line for line in lines)


def test_a_dataset_prepares_its_files(tmp_path: Path) -> None:
    spec = plugins().get("data", "frozen_stored")
    assert isinstance(spec, Dataset)
    manifest = target(spec.prepare, spec.name)(spec.prepare_config(output=str(tmp_path / "made"), count=30))
    assert manifest["count"] == 30
    words = ("data=frozen_stored", f"data.folder={tmp_path / 'made'}")
    assert run(job(*words), tmp_path / "run")["step"] == 6


def test_layouts_divide_the_model(tmp_path: Path) -> None:
    run(job("train.steps=3", "train.eval_every=0"), tmp_path / "one")
    spawn(ranks, 2, str(tmp_path))
    expected = {step: pytest.approx(value, abs=1e-5) for step, value in losses(tmp_path / "one").items()}
    assert {name: losses(tmp_path / name) for name in LAYOUTS} == dict.fromkeys(LAYOUTS, expected)


def test_an_adapter_goes_there_and_back() -> None:
    model = plugins().get("model", "frozen_stack")
    config = model.config()
    module, _ = model.load()(config)
    naming = importlib.import_module("frozen_line_parts").Renamed()
    ours = {name: lazy(tensor) for name, tensor in module.state_dict().items()}
    theirs = to_foreign(naming.adapter(config), ours, ties=True)
    assert theirs["lm_head.weight"].shape == torch.Size([config.width, config.words])
    back = to_native(naming.adapter(config), theirs, Path("there"))
    assert all(back[name].read().equal(tensor) for name, tensor in module.state_dict().items())
    assert naming.settings(naming.adapter(config).files, {}) == {"width": 16, "layers": 2, "words": 12}


def test_its_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.width: expected at least 1, got 0"):
        job("model.width=0")
    with pytest.raises(ConfigError, match=r"train\.patience: is more than train\.steps"):
        job("train.patience=100")
    assert math.isfinite(job().train.lr)
