"""``recipe prepare bert_packed``: shards with one sample a row to shards whose rows are full."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.shards import Arrays, Shape
from recipe_bert_dp.prepare.workers import fitting
from recipe_bert_dp.settings import MOST_SEED, PreparePacked
from recipe_core import ConfigError, DataError, write_text
from recipe_core.data.prepare import Output, Progress, hashed, input_facts, ordered_map, sha256, writing
from recipe_core.files import sync
from recipe_index import bert

WORK = "work"
_NOT_IN_FILES = ("output", "overwrite", "workers")


@dataclass(frozen=True)
class Slice:
    """Rows of a shard."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True)
class Group:
    """Samples that are packed together, into one shard."""

    kind: str
    """``training`` or ``test``."""
    number: int
    slices: tuple[Slice, ...]

    def __str__(self) -> str:
        first, last = self.slices[0], self.slices[-1]
        return f"rows {first.start} of {first.path} to {last.stop} of {last.path}"

    @property
    def name(self) -> str:
        """Path of its shard in the output."""
        return f"{self.kind}/{self.kind}_packed_{self.number:05}.hdf5"

    def plan(self, folder: Path) -> Path:
        """File of the samples that share a row."""
        return folder / WORK / f"{self.kind}_{self.number:05}.npz"


def prepare(settings: PreparePacked) -> dict[str, Any]:
    """Make the packed shards in the folder ``settings.output``, and return its manifest.

    Every sample of the inputs is in exactly one row. An interrupted run is continued by the next one with the same
    settings, and gives the same bytes.

    Raises:
        ConfigError: the output exists, or rows are to be shorter than the inputs' rows.
        DataError: an input is missing, damaged, packed already, or unlike the others.
        DiskError: there is no space left.
    """
    paths = shards.find(settings.inputs)
    shapes = {path: _shape(path) for path in paths}
    shape = _common(shapes)
    capacity = settings.sequence or shape.sequence
    if capacity < shape.sequence:
        raise ConfigError(f"sequence: expected 0 or at least {shape.sequence}, as the inputs have, got {capacity}")
    plain = {name: value for name, value in asdict(settings).items() if name not in _NOT_IN_FILES}
    facts = input_facts(paths)
    key = {"kind": "bert_packed", **plain, "inputs": facts}
    vocabulary = [found for found in [shards.vocabulary_beside(paths)] if found]
    groups = [g for kind in ("training", "test") for g in _groups(kind, shapes, settings.samples_per_shard)]
    final = Path(settings.output).expanduser()
    with Output(final, key, reads=[*paths, *vocabulary], overwrite=settings.overwrite) as output:
        hashes = hashed(facts)
        with output.writing():
            for folder in {WORK, *(group.kind for group in groups)}:
                (output.folder / folder).mkdir(exist_ok=True)
        plans = _run("plan", Plan(settings, capacity, output.folder), groups, settings.workers, output)
        slots = settings.max_samples or max(plan["most_samples"] for plan in plans.values())
        # Habana's width, which rounding up of every sample's predictions cannot pass; other masks may
        predictions = max(shape.predictions + slots, *(plan["most_predictions"] for plan in plans.values()))
        write = Write(settings, capacity, predictions, slots, output.folder)
        files = _run("shards", write, groups, settings.workers, output)
        kinds = sorted({group.kind for group in groups})
        manifest = {
            "kind": "bert_packed",
            "settings": plain,
            "inputs": hashes(),
            "counts": {kind: _counts(kind, groups, plans) for kind in kinds},
            "files": files,
        }
        with output.writing():
            for kind in kinds:
                # Habana's scripts look for it beside the folder with the shards
                found = _metadata(kind, groups, plans, capacity, shape.sequence)
                write_text(output.folder / f"{kind}_metadata.json", json.dumps(found, indent=2, sort_keys=True) + "\n")
            for path in vocabulary:
                shutil.copyfile(path, output.folder / "vocab.txt")
            shutil.rmtree(output.folder / WORK, ignore_errors=True)
        return output.finish(manifest)


def _shape(path: Path) -> Shape:
    with shards.opened(path) as file:
        return shards.shape_of(file, path)


def _common(shapes: dict[Path, Shape]) -> Shape:
    """The shape that all shards share."""
    first, shape = next(iter(shapes.items()))
    for path, other in shapes.items():
        if other.packed:
            raise DataError(f"{path}: is packed already; name shards with one sample a row")
        if (other.sequence, other.predictions) != (shape.sequence, shape.predictions):
            raise DataError(
                f"{path}: has {other.sequence} tokens and {other.predictions} predictions a row, but {first} has "
                f"{shape.sequence} and {shape.predictions}; pack them apart"
            )
    if not any(other.rows for other in shapes.values()):
        raise DataError(f"{first}: there is no sample in it{' nor in the other shards' if len(shapes) > 1 else ''}")
    return shape


def _groups(kind: str, shapes: dict[Path, Shape], size: int) -> list[Group]:
    """Cut the rows of all shards of a kind into groups of equal size, as near to ``size`` as may be."""
    mine = {path: shape.rows for path, shape in shapes.items() if shards.kind_of(path) == kind}
    total = sum(mine.values())
    count = -(-total // size)
    cuts = [total * number // count for number in range(count + 1)] if count else []
    groups = []
    for number, (low, high) in enumerate(pairwise(cuts)):
        slices, before = [], 0
        for path, rows in mine.items():
            start, stop = max(low - before, 0), min(high - before, rows)
            if start < stop:
                slices.append(Slice(path, start, stop))
            before += rows
        groups.append(Group(kind, number, tuple(slices)))
    return groups


def _run(stage: str, work: Any, groups: list[Group], workers: int, output: Output) -> dict[str, Any]:
    """Do ``work`` for each group that an earlier run has not done; returns what it gave, by the name of the group."""
    finished = {entry["name"]: entry["facts"] for entry in output.done if entry["stage"] == stage}
    todo = [group for group in groups if group.name not in finished]
    size = {group.name: sum(part.stop - part.start for part in group.slices) for group in todo}
    total = sum(size.values()) * work.row_bytes
    results = ordered_map(work, todo, fitting(workers, total // 8, len(todo)), str)
    with Progress(stage, total) as progress:
        done = 0
        for group, facts in zip(todo, results, strict=True):
            with output.writing():
                output.note({"stage": stage, "name": group.name, "facts": facts})
            finished[group.name] = facts
            done += size[group.name] * work.row_bytes
            progress.update(done)
    return dict(sorted(finished.items()))


@dataclass(frozen=True)
class Plan:
    """First stage, what a worker does: decide which samples of a group share a row."""

    settings: PreparePacked
    capacity: int
    folder: Path

    @property
    def row_bytes(self) -> int:
        """Bytes that are read of a sample, about."""
        return self.capacity

    def __call__(self, group: Group) -> dict[str, Any]:
        """Write the plan, and return its facts."""
        lengths, predictions = [], []
        for block in _blocks(group):
            lengths.append(_lengths(block, group))
            predictions.append(shards.used_predictions(block["masked_lm_positions"]))
        sizes, used = np.concatenate(lengths), np.concatenate(predictions)
        seed = (self.settings.seed + group.number) % MOST_SEED
        order, rows = bert.pack(sizes, self.capacity, self.settings.max_samples, seed)
        with writing(Path(self.settings.output)):
            np.savez(group.plan(self.folder), lengths=sizes, order=order, rows=rows)
            sync(group.plan(self.folder))
        patterns = Counter(_patterns(sizes[order], rows))
        return {
            "samples": int(sizes.size),
            "rows": int(rows.size - 1),
            "tokens": int(sizes.sum(dtype=np.int64)),
            "most_samples": int(np.diff(rows).max()),
            "most_predictions": int(np.add.reduceat(used[order], rows[:-1]).max()),
            "patterns": [[list(lengths), count] for lengths, count in sorted(patterns.items())],
        }


def _patterns(lengths: NDArray[np.int32], rows: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    plain, ends = lengths.tolist(), rows.tolist()
    for start, stop in pairwise(ends):
        yield tuple(sorted(plain[start:stop], reverse=True))


def _lengths(block: Arrays, group: Group) -> NDArray[np.int32]:
    """Tokens of each sample; its padding must be at the end."""
    mask = block["input_mask"]
    lengths: NDArray[np.int32] = mask.sum(axis=1, dtype=np.int32)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]) or not lengths.all():
        raise DataError(f"{group}: input_mask is not ones and then zeros in every row; run recipe verify on the inputs")
    return lengths


def _blocks(group: Group) -> Iterator[Arrays]:
    for part in group.slices:
        with shards.opened(part.path) as file:
            shape = shards.shape_of(file, part.path)
            for start in range(part.start, part.stop, shape.rows_at_once):
                yield shards.read(file, part.path, shape, start, min(start + shape.rows_at_once, part.stop))


@dataclass(frozen=True)
class Write:
    """Second stage, what a worker does: write the rows of a group."""

    settings: PreparePacked
    capacity: int
    predictions: int
    slots: int
    folder: Path

    @property
    def row_bytes(self) -> int:
        """Bytes that a sample has in the inputs, about."""
        return 6 * self.capacity

    def __call__(self, group: Group) -> dict[str, Any]:
        """Write the shard, and return its facts."""
        with np.load(group.plan(self.folder)) as plan:
            lengths, order, rows = plan["lengths"], plan["order"], plan["rows"]
        path = self.folder / group.name
        blocks = self._packed(_whole(group, lengths.size), lengths, order, rows)
        with writing(Path(self.settings.output)):
            shards.write(path, rows.size - 1, blocks, shards.PACKED, gzip=self.settings.gzip)
        return {"bytes": path.stat().st_size, "sha256": sha256(path), "rows": int(rows.size - 1)}

    def _packed(
        self, samples: Arrays, lengths: NDArray[np.int32], order: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Iterator[Arrays]:
        for start in range(0, rows.size - 1, shards.ROWS_AT_ONCE):
            arrays = bert.pack_rows(
                samples["input_ids"], samples["segment_ids"], lengths, samples["masked_lm_positions"],
                samples["masked_lm_ids"], samples["next_sentence_labels"], order,
                rows[start : start + shards.ROWS_AT_ONCE + 1], self.capacity, self.predictions, self.slots,
            )  # fmt: skip
            packed: Arrays = dict(zip(shards.PACKED, arrays, strict=True))
            yield packed


def _whole(group: Group, samples: int) -> Arrays:
    """All samples of a group in memory, without their masks: rows take them from anywhere."""
    whole: Arrays = {}
    done = 0
    for block in _blocks(group):
        for name, values in block.items():
            if name != "input_mask":
                target = whole.setdefault(name, np.empty((samples, *values.shape[1:]), values.dtype))
                target[done : done + len(values)] = values
        done += len(block["input_mask"])
    return whole


def _counts(kind: str, groups: list[Group], plans: dict[str, Any]) -> dict[str, int]:
    mine = [plans[group.name] for group in groups if group.kind == kind]
    return {name: sum(plan[name] for plan in mine) for name in ("samples", "rows", "tokens")}


def _metadata(kind: str, groups: list[Group], plans: dict[str, Any], capacity: int, sequence: int) -> dict[str, Any]:
    """Facts of a packed data set that Habana's scripts read, under their names."""
    counts = _counts(kind, groups, plans)
    patterns: Counter[tuple[int, ...]] = Counter()
    for group in groups:
        if group.kind == kind:
            patterns.update({tuple(lengths): count for lengths, count in plans[group.name]["patterns"]})
    samples, rows, tokens = counts["samples"], counts["rows"], counts["tokens"]
    return {
        "number_of_sequences_dropped": 0,
        "number_of_strategies_utilized": len(patterns),
        "original_number_of_samples": samples,
        "new_number_of_samples": rows,
        "compression_ratio": 1 - rows / samples,
        "expected_speed_up": samples / rows,
        "theoretical_speed_up": samples * capacity / tokens,
        "avg_seq_per_sample": samples / rows,
        "padding_tokens_original_dataset": samples * sequence - tokens,
        "padding_tokens_packed_dataset": rows * capacity - tokens,
        "packing_efficiency": tokens / (rows * capacity),
        "top_8_strategies": [[count, list(lengths)] for lengths, count in sorted(
            patterns.items(), key=lambda item: (-item[1], item[0])
        )[:8]],
    }  # fmt: skip
