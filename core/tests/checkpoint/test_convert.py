"""recipe convert, and what a run begins with, by the toy plugin and a foreign naming made up for it."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from recipe_core import Model, hookimpl, plugin
from recipe_core.checkpoint.adapter import Adapter, Link, Naming, to_foreign, to_native
from recipe_core.checkpoint.convert.convert import convert
from recipe_core.checkpoint.formats.dcp_write import _as_one_error
from recipe_core.checkpoint.formats.single import Single
from recipe_core.checkpoint.lazy import Lazy, lazy, same_bits
from recipe_core.checkpoint.locate import Request, find
from recipe_core.checkpoint.manifest import Manifest
from recipe_core.checkpoint.match.provenance import provenance_of
from recipe_core.cli import main as cli
from recipe_core.errors import CheckpointError, ConfigError, RecipeError
from recipe_core.hooks import registry
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import Part
from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job


class Foreign(Naming):
    """Weights transposed, other names, and a second name for one of them."""

    def adapter(self, config: Any) -> Adapter:
        links = [
            Link(ours=(f"layers.{i}.weight",), theirs=(f"l{i}.w",), to=transposed, back=transposed) for i in range(2)
        ]
        return Adapter(
            links=tuple(links), ties={"again": "l0.w"}, ignored=("*.counter",), spelling=lambda name: name.lower(),
            optional=("layers.1.*",), files={"config.json": '{"model_type": "toy", "hidden": 8}'},
        )  # fmt: skip

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> Mapping[str, Any] | None:
        return {"hidden": 8} if "toy" in files.get("config.json", "") else None


def transposed(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.t() for tensor in tensors]


class WithNaming:
    @staticmethod
    @hookimpl
    def register_models() -> Iterable[Model]:
        adapters = {"hf": f"{__name__}:Foreign"}
        return [replace(model, adapters=adapters) for model in toy.register_models()]

    register_datasets = staticmethod(toy.register_datasets)
    register_recipes = staticmethod(toy.register_recipes)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Registry:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__("types").ModuleType(__name__))
    monkeypatch.setattr(sys.modules[__name__], "Foreign", Foreign, raising=False)
    found = registry.load([("core", lambda: plugin), ("toy", lambda: WithNaming)])
    assert not found.broken
    monkeypatch.setattr("recipe_core.train.start.resume.load", lambda: found)
    monkeypatch.setattr("recipe_core.train.start.check.parts.load", lambda: found)
    return found


def trained(plugins: Registry, out: Path, *words: str) -> Path:
    run(resolve(plugins, "toy:tiny", words), out)
    return out


def request(plugins: Registry, source: Path, target: Path, to: str, **others: Any) -> Request:
    spec = plugins.get("checkpoint", to)
    return Request(source=source, target=target, to=Part(spec, spec.config()), **others)


def weights(path: Path, plugins: Registry) -> dict[str, Lazy]:
    found: dict[str, Lazy] = find(plugins, path).open()["model"]
    return found


def test_every_format_and_back(plugins: Registry, tmp_path: Path) -> None:
    """dcp -> single -> dcp with all states, -> hf -> single with the weights; every bit stays."""
    first = trained(plugins, tmp_path / "run")
    convert(plugins, request(plugins, first, tmp_path / "one", "single"))
    rows = convert(plugins, request(plugins, tmp_path / "one", tmp_path / "two", "dcp"))
    assert ("checked", "every tensor was read back and has the bits of the source") in rows
    one, two = (find(plugins, path).open() for path in (first, tmp_path / "two"))
    assert one["progress"] == two["progress"] == {"step": 4, "consumed_samples": 32}
    for name, states in one["optimizer"]["state"].items():
        assert all(same_bits(t.read(), two["optimizer"]["state"][name][k].read()) for k, t in states.items())
    convert(plugins, request(plugins, tmp_path / "two", tmp_path / "hf", "hf", drop_optimizer=True))
    assert weights(tmp_path / "hf", plugins)["l0.w"].shape == (6, 8)
    rows = convert(plugins, request(plugins, tmp_path / "hf", tmp_path / "back", "single"))
    assert ("optimizer", "the source has no optimizer states") in rows
    back = weights(tmp_path / "back", plugins)
    assert all(same_bits(t.read(), back[name].read()) for name, t in one["model"].items())
    assert Manifest.read(tmp_path / "back").step == 4


def test_a_converted_checkpoint_is_gone_on_from(plugins: Registry, tmp_path: Path) -> None:
    """In another format than the run's own; the losses are those of a run that was never stopped."""
    whole = run(resolve(plugins, "toy"), tmp_path / "whole")
    half = trained(plugins, tmp_path / "half", "train.steps=8", "train.stop_after=4")
    convert(plugins, request(plugins, half, tmp_path / "one", "single"))
    again = run(resolve(plugins, "toy", [f"train.resume={tmp_path / 'one'}"]), tmp_path / "again")
    assert again["loss"] == whole["loss"]


@pytest.mark.parametrize("form", ["dcp", "single", "hf"])
def test_a_run_begins_with_weights_of_any_format(plugins: Registry, tmp_path: Path, form: str) -> None:
    first = trained(plugins, tmp_path / "run")
    convert(plugins, request(plugins, first, tmp_path / "start", form, drop_optimizer=True))
    words = [f"train.init_from={tmp_path / 'start'}", "train.steps=1", "train.lr=0"]
    run(resolve(plugins, "toy", words), tmp_path / "new")
    found = find(plugins, tmp_path / "new").open()
    assert found["progress"] == {"step": 1, "consumed_samples": 8}
    assert all(same_bits(t.read(), found["model"][n].read()) for n, t in weights(first, plugins).items())


def test_a_start_that_is_required(plugins: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.init_from: this variant goes on from weights of an earlier run"):
        checked_job(plugins, "toy", ["train.init_from=required"], 1, tmp_path / "x")
    trained(plugins, tmp_path / "x")
    checked_job(plugins, "toy", ["train.init_from=required"], 1, tmp_path / "x")  # required only at the start


@pytest.mark.parametrize("setting", ["init_from", "resume"])
def test_a_start_that_is_not_there_is_told_before_the_run(plugins: Registry, tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"^train\.{setting}: {tmp_path}/typo: there is no such file or folder$"):
        checked_job(plugins, "toy", [f"train.{setting}={tmp_path / 'typo'}"], 1, tmp_path / "x")


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("hf", {}, r"hf holds no optimizer: its 12 tensors .* would be lost.* add --drop optimizer"),
        ("single", {"recipe": "megatron"}, "no recipe named 'megatron'"),
        ("single", {"format": "hf"}, r"holds no model\.safetensors"),
    ],
)
def test_what_cannot_be_converted(
    plugins: Registry, tmp_path: Path, target: str, words: dict[str, Any], message: str
) -> None:
    source = trained(plugins, tmp_path / "run") / "checkpoints" / "step-4"
    if "format" in words:
        (source / "checkpoint.json").unlink()
        source = source.rename(tmp_path / "other")
    with pytest.raises(RecipeError, match=message):
        convert(plugins, request(plugins, source, tmp_path / "x", target, **words))
    assert not (tmp_path / "x").exists()


def test_settings_beside_a_file_that_are_none(plugins: Registry, tmp_path: Path) -> None:
    """The message names the file that they are in."""
    convert(plugins, request(plugins, trained(plugins, tmp_path / "run"), tmp_path / "one", "single"))
    (tmp_path / "one" / "checkpoint.json").unlink()
    (tmp_path / "one" / "job.yaml").write_text("model: toy_model\n")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/one/job\.yaml: model: expected a line `use: NAME`"):
        convert(plugins, request(plugins, tmp_path / "one" / "checkpoint.pt", tmp_path / "x", "dcp"))


def test_the_section_train_of_an_earlier_version(plugins: Registry, tmp_path: Path) -> None:
    """Its engine stood in the section train; the settings of the optimizer are found all the same."""
    convert(plugins, request(plugins, trained(plugins, tmp_path / "run"), tmp_path / "one", "single"))
    (tmp_path / "one" / "checkpoint.json").unlink()
    job = yaml.safe_load((tmp_path / "one" / "job.yaml").read_text())
    del job["engine"]
    job["train"] |= {"engine": "auto", "bucket_mb": 25.0}
    (tmp_path / "one" / "job.yaml").write_text(yaml.safe_dump(job))
    source = find(plugins, tmp_path / "one" / "checkpoint.pt")
    train = provenance_of(plugins, source, source.open()).train
    assert train == resolve(plugins, job).train
    assert train is not None
    assert train.lr == 0.05


def test_a_target_that_is_there(plugins: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is there already; give the name of a new folder"):
        convert(plugins, request(plugins, tmp_path, tmp_path, "single"))


def test_a_target_inside_of_the_source(plugins: Registry, tmp_path: Path) -> None:
    run = trained(plugins, tmp_path / "run")
    (source,) = (run / "checkpoints").iterdir()
    before = sorted(source.rglob("*"))
    (tmp_path / "link").symlink_to(source)
    for target in (source / "single", tmp_path / "link" / "deep" / "single"):
        with pytest.raises(ConfigError, match=r"single is inside of the checkpoint .*step-\d+; name a"):
            convert(plugins, request(plugins, run, target, "single"))
    assert sorted(source.rglob("*")) == before


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_leaves_nothing(
    plugins: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    name: str, swallowed: bool,
) -> None:  # fmt: skip
    """SIGTERM and SIGHUP left a hidden folder with all that was written; and where PyTorch's reader had swallowed the
    exception of the signal, a sound file was called damaged."""
    source, there = trained(plugins, tmp_path / "run", "checkpoint=dcp"), tmp_path / "there"
    there.mkdir()
    number = getattr(signal, name)

    def interrupted(self: Single, path: Path, *args: Any) -> None:
        (path / "half").write_bytes(bytes(1000))
        assert [part.name.startswith(".out.") for part in there.iterdir()] == [True]
        try:
            signal.raise_signal(number)
        except BaseException:
            if swallowed:
                raise CheckpointError("damaged") from None
            raise

    monkeypatch.setattr(Single, "save", interrupted)
    monkeypatch.setattr("recipe_core.cli.checkpoint.convert.load_plugins", lambda: plugins)
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # none is ignored, as nohup and a shell's & have it
        signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)
    assert cli.main(["convert", str(source), str(there / "out"), "--to", "single"]) == 128 + number
    assert "damaged" not in capfd.readouterr().err
    assert list(there.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_changed_value_is_found_and_ends_the_hashing(
    plugins: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, save, checks = trained(plugins, tmp_path / "run"), Single.save, []

    def changed(self: Single, path: Path, state: dict[str, Any], *args: Any) -> None:
        name, tensor = next(iter(state["model"].items()))
        save(self, path, {**state, "model": {**state["model"], name: lazy(tensor.read() + 1)}}, *args)

    def endless(*args: Any, check: Callable[[], None], **facts: Any) -> None:
        while True:
            checks.append(check)
            check()

    monkeypatch.setattr(Single, "save", changed)
    monkeypatch.setattr(Manifest, "of", endless)
    with pytest.raises(CheckpointError, match="1 entries came back with other values than were written"):
        convert(plugins, request(plugins, source, tmp_path / "there", "single"))
    assert checks
    assert not (tmp_path / "there").exists()


def test_damaged_ones_are_passed_over(plugins: Registry, tmp_path: Path) -> None:
    first = trained(plugins, tmp_path / "run", "train.save_every=2")
    with (first / "checkpoints" / "step-4" / "__0_0.distcp").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff\xff")
    rows = dict(convert(plugins, request(plugins, first, tmp_path / "x", "single")))
    assert "step-2 (dcp, step 2)" in rows["from"]
    assert "does not hold the bytes that were written" in rows["passed over"]


def test_names_of_others() -> None:
    adapter = Foreign().adapter(None)
    ours = {"layers.0.weight": lazy(torch.ones(2, 3)), "layers.0.bias": lazy(torch.ones(2))}
    theirs = to_foreign(adapter, ours, ties=True)
    assert {name: tuple(t.shape) for name, t in theirs.items()} == {
        "l0.w": (3, 2), "layers.0.bias": (2,), "again": (3, 2),
    }  # fmt: skip
    back = to_native(adapter, {**{n.upper(): t for n, t in theirs.items()}, "x.counter": 7}, Path("x"))
    assert {name: tuple(t.shape) for name, t in back.items()} == {name: tuple(t.shape) for name, t in ours.items()}
    with pytest.raises(CheckpointError, match=r"again and l0\.w differ, and this model has one tensor for both"):
        to_native(adapter, {**theirs, "again": lazy(torch.zeros(3, 2))}, Path("x"))
    with pytest.raises(CheckpointError, match=r"L0\.W: a second tensor for l0\.w"):
        to_native(adapter, {**theirs, "L0.W": lazy(torch.zeros(3, 2))}, Path("x"))


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_is_no_damage(tmp_path: Path, end: BaseException) -> None:
    """PyTorch turns a Ctrl-C into a failure, which was reported as a checkpoint that cannot be written."""
    failed = CheckpointException("write", {0: (end, traceback.StackSummary())})
    with pytest.raises(type(end)) as raised, _as_one_error(tmp_path):
        raise failed
    assert raised.value is end
