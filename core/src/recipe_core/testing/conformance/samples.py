"""Checks of a dataset: the same samples for every number of ranks, and reproducible preparation."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from recipe_core.cli.data.parts import merge
from recipe_core.data.prepare import DataFiles, PreparePart
from recipe_core.engine.loader import all_widened
from recipe_core.errors import RecipeError
from recipe_core.files import home
from recipe_core.hooks.specs import Dataset, Recipe, load
from recipe_core.hooks.specs.wrapper import gives, outermost
from recipe_core.layouts.parallel import Batch, Run, Samples
from recipe_core.layouts.samples.build import build_samples
from recipe_core.settings.fill import fill
from recipe_core.settings.job import Job
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.train.feed import micro_batch_starts

_SIZES = (1, 2, 4)
_STEPS = 3
_PARTS = (1, 2, 5)


def same_for_every_world_size(plugin: Plugin, recipe: Recipe) -> str:
    """Check that the samples of a step do not depend on the number of ranks, and that none is read twice."""
    return alike_on_ranks(plugin.tiny(recipe), home())


def alike_on_ranks(job: Job, cache: Path) -> str:
    """Check what :func:`same_for_every_world_size` does, of any job."""
    fitting = [size for size in _SIZES if job.train.global_batch % (size * job.train.micro_batch) == 0]
    streams = {size: _stream(job, size, cache) for size in fitting}
    alone, promised = streams[fitting[0]], gives(job.data)
    lacking = sorted({name for name in promised for sample in alone.values() if name not in sample})
    if lacking:
        name = outermost(job.data).name
        raise FailedCheck(f"data: {name} promises {', '.join(lacking)} (gives), and no batch has it")
    for size, stream in streams.items():
        if stream.keys() != alone.keys():
            raise FailedCheck(f"data: {size} ranks read other samples than one; read(split, start, count) is global")
        for number, sample in alone.items():
            if changed := [key for key in sample if not sample[key].equal(stream[number][key])]:
                raise FailedCheck(
                    f"data: {changed[0]} of sample {number} differs between 1 and {size} ranks; a sample must follow "
                    "from the seed, the split and its number alone"
                )
    return f"{len(alone)} samples on {', '.join(map(str, fitting))} ranks"


def same_in_any_order(plugin: Plugin, recipe: Recipe) -> str:
    """Check that a sample does not depend on earlier reads, in both splits, as a resumed run requires."""
    return alike_in_any_order(plugin.tiny(recipe), home(), home())


def alike_in_any_order(job: Job, cache: Path, other: Path) -> str:
    """Check what :func:`same_in_any_order` does, of any job; two readers have a cache each."""
    for split in ("train", "valid"):
        whole = _samples(job, cache).read(split, 0, 6)
        part = _samples(job, other).read(split, 4, 2)
        for key, values in whole.items():
            if values.shape[0] != 6 or not values[4:].equal(part[key]):
                raise FailedCheck(
                    f"data: {key} of sample 4 of {split!r} depends on what was read before; it must follow from the "
                    "seed, the split and its number alone"
                )
    return "train and valid"


def prepared_alike(plugin: Plugin, spec: Dataset) -> str:
    """Check that ``prepare`` gives the same bytes twice, and that ``verify`` accepts them and finds damage."""
    if not spec.prepare:
        raise SkippedCheck("it prepares no files")
    if not spec.prepare_example:
        raise SkippedCheck("prepare_example names no function that gives small inputs for `recipe prepare`")
    folder = plugin.folder / "prepare" / spec.name
    inputs = folder / "inputs"
    inputs.mkdir(parents=True)
    settings = load(spec.prepare_example, f"dataset {spec.name!r}")(inputs)
    contents = [_prepare(spec, settings, folder / name) for name in ("first", "second")]
    if contents[0].keys() != contents[1].keys():
        raise FailedCheck(f"prepare: made {sorted(contents[0])}, and of the same inputs then {sorted(contents[1])}")
    if changed := [name for name in contents[0] if contents[0][name] != contents[1][name]]:
        raise FailedCheck(f"prepare: {', '.join(changed)} has other bytes the second time; draw from a seed alone")
    return f"{len(contents[0])} files{_verified(spec, folder / 'first')}"


def parts_merge_alike(plugin: Plugin, spec: Dataset) -> str:
    """Check that the parts of a preparation, made in any order and merged, give the bytes of one process."""
    if not spec.prepare or not spec.prepare_part:
        raise SkippedCheck("prepare_part names no function, so that `recipe prepare ... part=K/N` is refused")
    if not spec.merge_parts:
        raise FailedCheck("merge_parts: names no function, so that `recipe prepare ... part=K/N` is refused")
    if not (example := spec.part_example or spec.prepare_example):
        raise SkippedCheck("part_example names no function that gives small inputs for `recipe prepare`")
    folder = plugin.folder / "parts" / spec.name
    inputs = folder / "inputs"
    inputs.mkdir(parents=True)
    settings = load(example, f"dataset {spec.name!r}")(inputs)
    alone = _prepare(spec, settings, folder / "alone")
    for count in _PARTS:
        paths = [folder / f"part-{number}-of-{count}" for number in range(1, count + 1)]
        for number, path in reversed([*enumerate(paths, 1)]):
            _prepare(spec, settings, path, PreparePart(number, count))
        merged = folder / f"merged-{count}"
        with contextlib.redirect_stderr(io.StringIO()):
            merge({spec.name: spec}, [str(merged), *map(str, reversed(paths))])
        contents = _contents(merged)
        if differing := sorted(n for n in {*alone, *contents} if alone.get(n) != contents.get(n)):
            raise FailedCheck(
                f"merge_parts: {', '.join(differing)} of {count} parts differs from what one process makes; a part may "
                "depend on the settings, the inputs, K and N alone, and the merge must do what depends on all of them"
            )
    return f"{', '.join(map(str, _PARTS))} parts give the bytes of one process"


def first_batch(job: Job, count: int) -> Batch:
    """Return the first ``count`` training samples, as the loop passes them to the model."""
    return all_widened(_samples(job, home()).read("train", 0, count))


def _prepare(
    spec: Dataset, settings: Mapping[str, Any], output: Path, part: PreparePart | None = None
) -> dict[str, bytes]:
    problems: list[str] = []
    filled = fill(spec.prepare_config, {**settings, "output": str(output)}, spec.name, problems)
    if filled is None:
        raise FailedCheck(f"prepare_example: its settings are wrong: {'; '.join(problems)}")
    with contextlib.redirect_stderr(io.StringIO()):  # hides the progress
        if part is None:
            load(spec.prepare, f"dataset {spec.name!r}")(filled)
        else:
            load(spec.prepare_part, f"dataset {spec.name!r}")(filled, part)
    return _contents(output)


def _contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _verified(spec: Dataset, folder: Path) -> str:
    """Check the reader of ``spec`` with prepared files; return text for the note."""
    if not spec.files:
        return ", no reader for `recipe verify`"
    files: DataFiles = load(spec.files, f"dataset {spec.name!r}")()
    if not files.detect(folder):
        raise FailedCheck(f"files: detect() does not know what prepare made in {folder.name}")
    if problems := files.verify(folder):
        raise FailedCheck(f"files: verify() finds in what prepare made: {problems[0]}")
    files.inspect(folder, None)
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    largest.write_bytes(damaged)
    try:
        problems = files.verify(folder)
    except RecipeError as error:  # a file that cannot be read at all
        problems = [str(error)]
    if not problems:
        raise FailedCheck(f"files: verify() finds nothing wrong after a byte of {largest.name} was changed")
    return ", verified; damage is found"


def _context(job: Job, rank: int, ranks: int, cache: Path) -> Run:
    facts = job.model_facts()
    return Run(
        device=torch.device("cpu"), mesh=None, rank=rank, world_size=ranks, local_rank=rank, dp_rank=rank,
        dp_size=ranks, train=job.train, cache=cache, vocabulary=facts.vocabulary if facts else None,
    )  # fmt: skip


def _samples(job: Job, cache: Path) -> Samples:
    return build_samples(job.data, _context(job, 0, 1, cache))


def _stream(job: Job, ranks: int, cache: Path) -> dict[int, Batch]:
    """Samples of some steps by number, as ``ranks`` data-parallel ranks read them."""
    stream: dict[int, Batch] = {}
    for rank in range(ranks):
        run = _context(job, rank, ranks, cache)
        samples = build_samples(job.data, run)
        for step in range(_STEPS):
            for first in micro_batch_starts(run, step * job.train.global_batch, job.train.global_batch):
                batch = samples.read("train", first, job.train.micro_batch)
                for index in range(job.train.micro_batch):
                    if first + index in stream:
                        raise FailedCheck(f"data: two of {ranks} ranks read sample {first + index}")
                    stream[first + index] = {key: value[index] for key, value in batch.items()}
    return stream
