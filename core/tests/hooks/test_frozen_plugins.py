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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from recipe_core.checkpoint.adapter import to_foreign, to_native
from recipe_core.checkpoint.lazy import lazy
from recipe_core.cli.main import main
from recipe_core.data.prepare.executors.schedule import submitting
from recipe_core.engine.machine.environment import variables
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.specs import Dataset
from recipe_core.hooks.specs import load as target
from recipe_core.hooks.specs.executor import ExecutorRun, PartTask
from recipe_core.settings.job import Job
from recipe_core.testing import spawn
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.testing.packages import install_plugin
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

Say = Callable[..., tuple[int, str, str]]
FOLDER = Path(__file__).parent / "frozen_api_1"
PLUGINS = ("frozen_line", "frozen_place", "frozen_step", "frozen_around", "frozen_program", "frozen_crew")
FROZEN = {
    "frozen_around.py": "d42e0fcba02c5a4d",
    "frozen_around_parts.py": "36bd6468056a8f53",
    "frozen_crew.py": "c96f6811e99edff4",
    "frozen_crew_parts.py": "01e634d57e64ea52",
    "frozen_line.py": "1766daaa03b2d75a",
    "frozen_line_parts.py": "a16d2b7b69c5ffa6",
    "frozen_place.py": "27c7b1069041e192",
    "frozen_place_parts.py": "cc9b3cb2db6d9c67",
    "frozen_program.py": "b61aaf842ed241c9",
    "frozen_program_parts.py": "3bc375e184491f1e",
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


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Type a command where the plugins are installed."""
    for name in PLUGINS:
        install_plugin(tmp_path / "site", name, name, distribution=f"{name}-dist")
    for folder in (FOLDER, tmp_path / "site"):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("RECIPE_PLUGINS", ",".join(PLUGINS))
    monkeypatch.chdir(tmp_path)

    def type_it(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return type_it


def job(*words: str, processes: int = 1) -> Job:
    return checked_job(plugins(), "frozen:tiny", words, processes, disk=False)


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_rows(folder / METRICS) if "loss" in row}


def ranks(folder: str, layouts: Mapping[str, Sequence[str]]) -> None:
    """Body of each of two processes."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    store = os.environ.get("RECIPE_STORE")
    for number, (name, words) in enumerate(layouts.items()):
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
    spawn(ranks, 2, str(tmp_path), LAYOUTS)
    expected = {step: pytest.approx(value, abs=1e-5) for step, value in losses(tmp_path / "one").items()}
    assert {name: losses(tmp_path / name) for name in LAYOUTS} == dict.fromkeys(LAYOUTS, expected)


def test_an_engine_runs(tmp_path: Path) -> None:
    words = ("engine=frozen_desk", "engine.label=3", "optimizer=adamw", "train.lr=0.1")
    own = job(*words)
    run(own, tmp_path / "own")
    rows = [row for row in read_rows(tmp_path / "own" / METRICS) if "desk_label" in row]
    assert {(row["desk_label"], row["desk_on"]) for row in rows} == {(3.0, 1.0)}
    assert [(one.name, one.value) for one in variables(own, 1, False)] == [("FROZEN_DESK", "3")]
    run(job(*words, "train.stop_after=2"), tmp_path / "cut")
    run(job(*words), tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "own")
    for words, said in (
        (("train.device=cuda",), "train.device: this engine has no cuda"),
        (("layout=pp",), "layout: this engine has no pipelines"),
        (("engine.label=0",), r"engine\.label: expected at least 1, got 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            job("engine=frozen_desk", *words, processes=2 if words == ("layout=pp",) else 1)


def test_callbacks_are_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("callbacks=frozen_mean,frozen_quiet", "callback.frozen_quiet.file=diary.txt")
    run(job(*words), tmp_path / "whole")
    assert (tmp_path / "whole" / "mean.txt").read_text(encoding="utf-8") == "6 [6]"
    rows = read_rows(tmp_path / "whole" / METRICS)
    assert [(row["mean_of"], row["moments"]) for row in rows if "mean_of" in row] == [(n, 3.0) for n in range(1, 7)]
    assert [row["step"] for row in rows if "val_mean_loss" in row] == [3, 6]
    assert "val_mean_loss" in (tmp_path / "whole" / "diary.txt").read_text(encoding="utf-8")
    assert "callback 'frozen_quiet': before_save raised ZeroDivisionError" in capsys.readouterr().err
    run(job(*words, "train.stop_after=2"), tmp_path / "cut")
    run(job(*words), tmp_path / "cut")
    assert equal(tensors(tmp_path / "cut"), tensors(tmp_path / "whole"))
    run(job("callbacks=frozen_mean", "callback.frozen_mean.until=4"), tmp_path / "ended")
    assert json.loads((tmp_path / "ended" / "results.json").read_text(encoding="utf-8"))["step"] == 4
    with pytest.raises(ConfigError, match=r"callback\.frozen_mean: until: is more than train\.steps"):
        job("callbacks=frozen_mean", "callback.frozen_mean.until=7")


def test_a_transform_changes_the_model(say: Say, tmp_path: Path) -> None:
    words = ("transforms=frozen_gain", "transform.frozen_gain.start=0.5", "train.lr=0.1")
    own = job(*words)
    facts = own.facts.model
    assert facts is not None
    assert (facts.parameters, facts.frozen_parameters) == (2 * 8, 2 * 12 * 8 + 2 * 8 + 2 * (8 * 8 + 8))
    run(own, tmp_path / "own")
    trained = tensors(tmp_path / "own")
    gains = [name for name in trained if name.startswith("model.") and name.endswith(".gain")]
    assert gains == ["model.blocks.0.gain", "model.blocks.1.gain"]
    run(job(f"train.init_from={tmp_path / 'own'}", "train.lr=0"), tmp_path / "merged")
    merged = tensors(tmp_path / "merged")
    product = trained["model.blocks.0.weight"] * trained[gains[0]][:, None]
    assert torch.equal(merged["model.blocks.0.weight"], product)
    with pytest.raises(ConfigError, match=r"transform\.frozen_gain: start: nothing would pass"):
        job(*words, "transform.frozen_gain.start=0")


def test_parts_around_the_model_work_under_layouts(tmp_path: Path) -> None:
    words = ("train.steps=3", "train.eval_every=0", "transforms=frozen_gain", "callbacks=frozen_mean")
    run(job(*words), tmp_path / "one")
    layouts = {"ddp": ["engine=frozen_desk", "layout=ddp", "optimizer=adamw"], "tp": ["layout=tp"], "pp": ["layout=pp"]}
    run(job(*words, "engine=frozen_desk", "optimizer=adamw"), tmp_path / "desk")
    spawn(ranks, 2, str(tmp_path), {name: [*words, *own] for name, own in layouts.items()})
    for name, peer in (("tp", "one"), ("pp", "one"), ("ddp", "desk")):
        expected = {step: pytest.approx(value, abs=1e-5) for step, value in losses(tmp_path / peer).items()}
        assert losses(tmp_path / name) == expected, name


def test_wrappers_change_samples(tmp_path: Path) -> None:
    words = ("wrappers=frozen_odd,frozen_swapped", "wrapper.frozen_swapped.share=0.5")
    wrapped = job(*words)
    data = wrapped.facts.data
    assert data is not None
    assert (data.sequence, data.train_samples) == (8, None)
    run(wrapped, tmp_path / "whole")
    run(job(*words, "train.stop_after=2"), tmp_path / "cut")
    run(job(*words), tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    run(job(), tmp_path / "plain")
    assert losses(tmp_path / "plain")[1] != losses(tmp_path / "whole")[1]


def test_a_launcher_submits(say: Say, tmp_path: Path) -> None:
    words = ("submit", "frozen:tiny", "--to=frozen_tray", "--nodes=2", "--processes-per-node=1", "--time=10m")
    code, out, err = say(*words, "layout=ddp", "--out", "runs/one")
    assert (code, err) == (0, "")
    assert out.startswith("job 7: frozen-tiny, 2 nodes x 1 processes, 10 minutes\n")
    launch = tmp_path / "runs" / "one" / "launch"
    assert (launch / "job-7").read_text(encoding="utf-8") == "tray.sh,second.txt"
    script = (launch / "tray.sh").read_text(encoding="utf-8")
    assert f"\ncd {tmp_path}\n" in script
    assert script.endswith(f" run {tmp_path}/runs/one/job.yaml\n")
    assert "waiting" in say("status", "runs/one")[1]
    assert say("stop", "runs/one")[0] == 0
    assert (tmp_path / "stopped-7").read_text(encoding="utf-8") == "waiting"
    more = [word.replace("nodes=2", "nodes=4") for word in words]
    code, _, err = say(*more, "layout=ddp", "train.micro_batch=2", "--out", "runs/two")
    assert (code, err) == (2, "recipe submit: --nodes: a tray holds two, got 4\n")


def test_an_executor_runs_tasks(tmp_path: Path) -> None:
    spec = plugins().get("executor", "frozen_crew")
    tasks = [
        PartTask(number=number, arguments=words, folder=tmp_path, log=tmp_path / f"{number}.log")
        for number, words in enumerate((("--version",), ("prepare", "nothing"), ("ls", "nothing")), 1)
    ]
    with submitting(spec, spec.config(), ExecutorRun(name="made", address="", folder=tmp_path)) as submit:
        assert [future.result(timeout=100) for future in submit(tasks)] == [0, 2, 2]
        assert (tmp_path / "made-1").read_text(encoding="utf-8") == "() {} "
    assert not (tmp_path / "made-1").exists()
    first, second = (tmp_path / "1.log").read_text(encoding="utf-8").splitlines()
    assert first == f"1 in {tmp_path}: --version"
    assert second.startswith("recipe, version ")
    there = ExecutorRun(name="made", address="there", folder=tmp_path)
    with pytest.raises(ConfigError, match="a crew has no address"), submitting(spec, spec.config(), there):
        pass


def test_commands_answer(say: Say) -> None:
    assert say("frozen-steps", "frozen:tiny", "train.steps=5", "--times", "2") == (0, "10\n", "")
    assert say("frozen-many", "fails")[0] == 4
    assert say("frozen-many", "refuses") == (2, "", "recipe frozen-many refuses: frozen: expected something else\n")
    code, _, err = say("frozen-steps", "frozen", "--lr", "1")
    assert (code, err) == (2, "recipe frozen-steps: --lr: no such option; write `train.lr=1`\n")


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
