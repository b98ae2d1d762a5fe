"""The tests that every plugin inherits."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_core.hooks.registry import KINDS, Registry, load
from recipe_core.hooks.specs import CheckpointFormat, EngineSpec, Model, Recipe, Spec
from recipe_core.hooks.specs import load as load_function
from recipe_core.settings.job import Job, resolve
from recipe_core.testing.runs import Finished, run_tiny

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
LIGHT = ("claims", "problems", "environment", "one_process", "precompile", "findings")
"""Functions of an engine that are called before a run."""


class PluginConformance:
    """Inherit it in a test file and name the plugin's module; every test must stay.

    What the plugin does not contribute (a layout, say) has nothing to test, and passes.
    """

    plugin = ""
    """Module with the hooks, as the entry point names it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(PluginConformance):
            if name.startswith("test_") and not callable(getattr(cls, name)):
                raise TypeError(f"{cls.__name__}.{name} takes a conformance test away; mend what it found instead")

    @pytest.fixture(scope="class")
    @classmethod
    def registry(cls) -> Registry:
        """Everything that is installed."""
        found = load()
        assert not found.broken, found.broken
        return found

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
        """Four steps of every recipe's tiny variant, in one go."""
        folder = tmp_path_factory.mktemp("whole")
        return {r.name: run_tiny(r.name, folder / r.name, "train.steps=4", "train.log_every=1") for r in cls.recipes()}

    @classmethod
    def contributed(cls) -> Iterator[tuple[str, Spec | Recipe]]:
        """Kind and contribution, of everything in the plugin."""
        module = importlib.import_module(cls.plugin)
        for kind, hook in KINDS.items():
            items: Iterable[Spec | Recipe] = getattr(module, hook, tuple)()
            for item in items:
                yield kind, item

    @classmethod
    def specs(cls) -> list[Spec]:
        """Models, datasets, layouts, checkpoint formats and engines."""
        return [item for _, item in cls.contributed() if isinstance(item, Spec)]

    @classmethod
    def recipes(cls) -> list[Recipe]:
        """Recipes."""
        return [item for _, item in cls.contributed() if isinstance(item, Recipe)]

    def test_contributes_something(self) -> None:
        """A misspelt hook, or the wrong module, would make every other test pass."""
        assert list(self.contributed())

    def test_imports_no_torch(self) -> None:
        """The plugin's module is read by every command, so that it must be light."""
        code = f"import sys, {self.plugin}; print(*{{'torch', 'numpy', 'transformers'}} & sys.modules.keys())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == []

    def test_names_and_summaries(self) -> None:
        """Names can be typed without quoting; each has a line for ``recipe ls``."""
        for _, item in self.contributed():
            assert NAME.fullmatch(item.name), item.name
            assert item.summary, item.name
            assert "\n" not in item.summary, item.name

    def test_settings_are_frozen_and_have_usable_defaults(self) -> None:
        """``layout=NAME`` on the command line takes a part as it is."""
        for spec in self.specs():
            assert dataclasses.is_dataclass(spec.config), spec.name
            settings = spec.config()
            for field in dataclasses.fields(settings):
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(settings, field.name, None)

    def test_every_name_of_code_resolves(self) -> None:
        """``package.module:function`` exists for builds, facts, and what recipes name."""
        import pkgutil

        for _, item in self.contributed():
            keys = ("build", "facts", "plan", "resolved", "tokenizer", "run", "log_line", "closing", *LIGHT)
            named = {key: getattr(item, key, "") for key in keys}
            others = {**getattr(item, "adapters", {}), **getattr(item, "layouts", {})}
            for key, target in {**named, **others}.items():
                if target:
                    assert callable(pkgutil.resolve_name(target)), f"{item.name}.{key}"

    def test_engines_are_asked_without_torch(self) -> None:
        """Functions of an engine that are called before a run import no torch."""
        for spec in self.specs():
            if isinstance(spec, EngineSpec):
                modules = {getattr(spec, key).partition(":")[0] for key in LIGHT} - {""}
                code = f"import sys, {', '.join(sorted(modules)) or 'sys'}; print('torch' in sys.modules)"
                done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
                assert done.stdout.strip() == "False", spec.name

    def test_every_variant_resolves(self, registry: Registry) -> None:
        """Every shipped variant fits the real settings; ``tiny`` is one of them."""
        for recipe in self.recipes():
            assert "tiny" in recipe.variants, recipe.name
            for name in [recipe.name, *(f"{recipe.name}:{v}" for v in recipe.variants)]:
                job = resolve(registry, name)
                assert job.name == name
                assert isinstance(job, Job)

    def test_a_model_is_divided_as_it_says(self) -> None:
        """Every pattern of its tensor plan has a match, every parameter a role, and its facts count what is cut."""
        import torch

        from recipe_core.layouts.patterns import matching
        from recipe_core.layouts.tensor_parallel.plan import assign

        for spec in self.specs():
            if isinstance(spec, Model) and spec.plan:
                config = spec.config()
                with torch.device("meta"):
                    module, _ = spec.load()(config)
                cuts = assign(module, spec.structure(config).plan, 1).cuts
                facts = load_function(spec.facts, spec.name)(config, 8)
                blocks = matching(module, spec.blocks).values()
                counts = {sum(p.numel() for p in block.parameters()) for block in blocks}
                assert (len(blocks), counts) == (facts.blocks, {facts.block_parameters}), spec.name
                cut = sum(parameter.numel() for parameter, cut in cuts.items() if cut.dim is not None)
                assert cut == facts.divided_parameters, spec.name

    def test_tiny_trains(self, whole: dict[str, Finished]) -> None:
        """The real command, to the end."""
        for name, run in whole.items():
            assert sorted(s for s in run.column() if s) == [1, 2, 3, 4], name
            assert run.results["step"] == 4, name

    def test_stop_and_resume_gives_the_same_losses(self, whole: dict[str, Finished], tmp_path: Path) -> None:
        """Stopped after 2 of 4 steps and continued: every loss equals the uninterrupted run, to the last bit."""
        for name, run in whole.items():
            out = tmp_path / name
            words = ("train.steps=4", "train.log_every=1", "train.stop_after=2")
            assert run_tiny(name, out, *words).results["step"] == 2
            assert run_tiny(name, out, *words).column() == run.column(), name

    def test_same_samples_on_one_and_two_ranks(self, registry: Registry, tmp_path: Path) -> None:
        """The samples of a step do not depend on the number of ranks."""
        for recipe in self.recipes():
            job = resolve(registry, f"{recipe.name}:tiny")
            streams = [_stream(job, size, tmp_path) for size in (1, 2)]
            assert streams[0].keys() == streams[1].keys()
            assert len(streams[0]) == 3 * job.train.global_batch
            given = job.data.spec.gives
            assert all(set(given) <= sample.keys() for sample in streams[0].values()), recipe.name
            for number, sample in streams[0].items():
                assert all(sample[key].equal(streams[1][number][key]) for key in sample), (recipe.name, number)

    def test_formats_round_trip(self, tmp_path: Path) -> None:
        """A format recognises, loads and opens its own checkpoints, bit by bit, and is known by its files."""
        import torch

        from recipe_core.checkpoint.formats.base import Format

        for _, spec in self.contributed():
            if isinstance(spec, CheckpointFormat):
                form, path = spec.load()(spec.config()), tmp_path / spec.name
                assert isinstance(form, Format), (
                    f"{spec.name}: derive it from recipe_core.checkpoint.formats.base.Format"
                )
                weights = {"a": torch.randn(3, 5), "b": torch.arange(4, dtype=torch.bfloat16)}
                path.mkdir()
                if spec.ranks:
                    form.save(path, {"ranks": {(0, 0): {"model": dict(weights)}}, "progress": {"step": 7}})
                    _require_rank(form.open(path), weights, spec.name)
                    continue
                form.save(path, {"model": dict(weights), "progress": {"step": 7}})
                assert form.detect(path), spec.name
                loaded = {key: torch.zeros_like(value) for key, value in weights.items()}
                state: dict[str, Any] = {"model": loaded, "progress": {"step": 0}}
                form.load(path, state)
                assert all(state["model"][key].equal(value) for key, value in weights.items()), spec.name
                opened = form.open(path)
                assert opened["model"].keys() == weights.keys(), spec.name
                assert all(opened["model"][key].read().equal(value) for key, value in weights.items()), spec.name
                if "progress" in spec.holds:
                    assert state["progress"] == opened["progress"] == {"step": 7}, spec.name
                assert any(any(path.glob(pattern)) for pattern in spec.patterns), spec.name


def _require_rank(opened: dict[str, Any], weights: dict[str, Any], name: str) -> None:
    """A format of a file for each rank gives back the tensors of its only rank, and the step."""
    found = opened["ranks"][0, 0]["model"]
    assert found.keys() == weights.keys(), name
    assert all(found[key].read().equal(value) for key, value in weights.items()), name
    assert opened["progress"]["step"] == 7, name


def _stream(job: Job, dp_size: int, cache: Path) -> dict[int, dict[str, Any]]:
    """Samples of three steps by their number, as the feeds of ``dp_size`` ranks read them together."""
    import torch

    from recipe_core.layouts.parallel import Run
    from recipe_core.train.feed import starts

    found: dict[int, dict[str, Any]] = {}
    for rank in range(dp_size):
        run = Run(
            device=torch.device("cpu"), mesh=None, rank=rank, world_size=dp_size, local_rank=rank, dp_rank=rank,
            dp_size=dp_size, train=job.train, cache=cache,
        )  # fmt: skip
        samples = job.data.build(job.data.config, run)
        for first in starts(run, 0, 3 * job.train.global_batch):
            batch = samples.read("train", first, job.train.micro_batch)
            for i in range(job.train.micro_batch):
                assert first + i not in found, "two ranks read one sample"
                found[first + i] = {key: value[i] for key, value in batch.items()}
    return found
