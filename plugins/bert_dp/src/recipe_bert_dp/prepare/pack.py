"""``recipe prepare bert_packed``: shards with one sample per row to packed shards."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.shards import Arrays, ShardShape
from recipe_bert_dp.prepare.workers import fitting
from recipe_bert_dp.settings import MOST_SEED, PreparePacked
from recipe_core import ConfigError, DataError, write_text
from recipe_core.data.prepare import Output, PreparePart, ProgressBar, hashed, input_facts, ordered_map, sha256, writing
from recipe_core.files import sync
from recipe_index import bert

KIND = "bert_packed"
WORK = "work"
VOCABULARY = "vocab.txt"
_NOT_IN_FILES = ("output", "overwrite", "workers")


@dataclass(frozen=True)
class RowRange:
    """Rows ``start`` to ``stop - 1`` of a shard."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True)
class PackTask:
    """Samples to pack into one shard, the unit of work of a process."""

    kind: str
    """``training`` or ``test``."""
    number: int
    ranges: tuple[RowRange, ...]

    def __str__(self) -> str:
        first, last = self.ranges[0], self.ranges[-1]
        return f"rows {first.start} of {first.path} to {last.stop} of {last.path}"

    @property
    def name(self) -> str:
        """Path of the shard in the output folder."""
        return f"{self.kind}/{self.kind}_packed_{self.number:05}.hdf5"

    def plan(self, folder: Path) -> Path:
        """File with the assignment of samples to rows."""
        return folder / WORK / f"{self.kind}_{self.number:05}.npz"


def prepare(settings: PreparePacked) -> dict[str, Any]:
    """Write packed shards into the folder ``settings.output``; returns its manifest.

    Every sample of the inputs is in exactly one row. After an interruption, the next call with the same settings
    continues, with the same bytes as a result.

    Raises:
        ConfigError: the output exists, or ``sequence`` is shorter than the inputs' rows.
        DataError: an input is missing, damaged, packed already, or has another shape than the first.
        DiskError: no space is left.
    """
    work = Packing.of(settings)
    with work.output() as output:
        hashes = hashed(work.facts)
        plans, _, files = run_tasks(work, work.tasks, output)
        return finish(work.plain, work.capacity, work.shape.sequence, plans, files, hashes(), work.vocabulary, output)


@dataclass(frozen=True)
class Packing:
    """A preparation before its work."""

    settings: PreparePacked
    paths: list[Path]
    """Of the inputs."""
    facts: list[dict[str, Any]]
    shape: ShardShape
    """Of the inputs' rows."""
    tasks: list[PackTask]

    @classmethod
    def of(cls, settings: PreparePacked) -> Packing:
        """Find the inputs and divide their samples into tasks.

        Raises:
            ConfigError: ``sequence`` is shorter than the inputs' rows.
            DataError: an input is missing, damaged, packed already, or has another shape than the first.
        """
        paths = shards.find(settings.inputs)
        shapes = {path: _shape(path) for path in paths}
        shape = _common_shape(shapes)
        if 0 < settings.sequence < shape.sequence:
            raise ConfigError(
                f"sequence: expected 0 or at least {shape.sequence}, as the inputs have, got {settings.sequence}"
            )
        tasks = [task for kind in ("training", "test") for task in _tasks(kind, shapes, settings.samples_per_shard)]
        return cls(settings, paths, input_facts(paths), shape, tasks)

    @property
    def capacity(self) -> int:
        """Tokens per packed row."""
        return self.settings.sequence or self.shape.sequence

    @property
    def plain(self) -> dict[str, Any]:
        """The settings that affect the bytes of the files."""
        return {name: value for name, value in asdict(self.settings).items() if name not in _NOT_IN_FILES}

    @property
    def vocabulary(self) -> Path | None:
        """The inputs' vocab.txt, if any."""
        return shards.vocabulary_of(self.paths)

    def output(self, part: PreparePart | None = None) -> Output:
        """Return the output folder, for the whole preparation or one part of it."""
        key = {"kind": KIND, **self.plain, "inputs": self.facts, **({"part": str(part)} if part else {})}
        reads = [*self.paths, *([self.vocabulary] if self.vocabulary else [])]
        final = Path(self.settings.output).expanduser()
        return Output(final, key, reads=reads, overwrite=self.settings.overwrite)


def run_tasks(
    work: Packing, tasks: list[PackTask], output: Output
) -> tuple[dict[str, Any], Widths | None, dict[str, Any]]:
    """Pack the samples of ``tasks`` that an interrupted run has not packed.

    Returns:
        Facts of the plans by shard; the widths of the shards, None without any; and facts of the files.
    """
    settings = work.settings
    with output.writing():
        for folder in {WORK, *(task.kind for task in tasks)}:
            (output.folder / folder).mkdir(exist_ok=True)
    plans = _run("plan", PlanRows(settings, work.capacity, output.folder), tasks, settings.workers, output)
    widths = widths_of(settings, work.shape.predictions, plans) if plans else None
    files = {}
    if widths:
        write = WriteRows(settings, work.capacity, widths.predictions, widths.slots, output.folder)
        files = _run("shards", write, tasks, settings.workers, output)
    with output.writing():
        shutil.rmtree(output.folder / WORK, ignore_errors=True)
    return plans, widths, files


@dataclass(frozen=True)
class Widths:
    """Places in a packed row for predictions and samples."""

    predictions: int
    slots: int


def widths_of(settings: PreparePacked, predictions: int, plans: Mapping[str, Any]) -> Widths:
    """Widths for all rows of ``plans``, from samples with at most ``predictions``."""
    slots = settings.max_samples or max(plan["most_samples"] for plan in plans.values())
    # Habana's width, which suffices where predictions are rounded up per sample; other masks may need more.
    return Widths(max(predictions + slots, *(plan["most_predictions"] for plan in plans.values())), slots)


def finish(
    plain: Mapping[str, Any],
    capacity: int,
    sequence: int,
    plans: Mapping[str, Any],
    files: Mapping[str, Any],
    inputs: list[dict[str, Any]],
    vocabulary: Path | None,
    output: Output,
) -> dict[str, Any]:
    """Write what is next to the shards, and give the output its name; returns the manifest."""
    kinds = sorted({name.partition("/")[0] for name in plans})
    of_kind = {kind: [plan for name, plan in plans.items() if name.startswith(f"{kind}/")] for kind in kinds}
    with output.writing():
        for kind in kinds:
            # Habana's scripts expect it next to the folder with the shards.
            text = json.dumps(_metadata(of_kind[kind], capacity, sequence), indent=2, sort_keys=True) + "\n"
            write_text(output.folder / f"{kind}_metadata.json", text)
        if vocabulary:
            shutil.copyfile(vocabulary, output.folder / VOCABULARY)
    return output.finish(
        {
            "kind": KIND,
            "settings": plain,
            "inputs": inputs,
            "counts": {kind: _counts(of_kind[kind]) for kind in kinds},
            "files": files,
        }
    )


def _shape(path: Path) -> ShardShape:
    with shards.opened(path) as file:
        return shards.shape_of(file, path)


def _common_shape(shapes: dict[Path, ShardShape]) -> ShardShape:
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


def _tasks(kind: str, shapes: dict[Path, ShardShape], size: int) -> list[PackTask]:
    # Cut the rows of all shards of a kind into tasks of equal size, as close to ``size`` as possible.
    rows_of = {path: shape.rows for path, shape in shapes.items() if shards.kind_of(path) == kind}
    total = sum(rows_of.values())
    count = -(-total // size)
    cuts = [total * number // count for number in range(count + 1)] if count else []
    tasks = []
    for number, (low, high) in enumerate(pairwise(cuts)):
        ranges, before = [], 0
        for path, rows in rows_of.items():
            start, stop = max(low - before, 0), min(high - before, rows)
            if start < stop:
                ranges.append(RowRange(path, start, stop))
            before += rows
        tasks.append(PackTask(kind, number, tuple(ranges)))
    return tasks


def _run(stage: str, work: Any, tasks: list[PackTask], workers: int, output: Output) -> dict[str, Any]:
    # Call ``work`` for each task that an earlier run has not finished; returns all results by the task's name.
    finished = {entry["name"]: entry["facts"] for entry in output.done if entry["stage"] == stage}
    todo = [task for task in tasks if task.name not in finished]
    size = {task.name: sum(part.stop - part.start for part in task.ranges) for task in todo}
    total = sum(size.values()) * work.row_bytes
    results = ordered_map(work, todo, fitting(workers, total // 8, len(todo)), str)
    with ProgressBar(stage, total) as progress:
        done = 0
        for task, facts in zip(todo, results, strict=True):
            with output.writing():
                output.note({"stage": stage, "name": task.name, "facts": facts})
            finished[task.name] = facts
            done += size[task.name] * work.row_bytes
            progress.update(done)
    return dict(sorted(finished.items()))


@dataclass(frozen=True)
class PlanRows:
    """First stage, in a worker process: assign the samples of a task to rows."""

    settings: PreparePacked
    capacity: int
    folder: Path

    @property
    def row_bytes(self) -> int:
        """Approximate bytes to read per sample."""
        return self.capacity

    def __call__(self, task: PackTask) -> dict[str, Any]:
        """Write the plan; returns its facts."""
        lengths, predictions = [], []
        for block in _blocks(task):
            lengths.append(_lengths(block, task))
            predictions.append(shards.used_predictions(block["masked_lm_positions"]))
        sizes, used = np.concatenate(lengths), np.concatenate(predictions)
        seed = (self.settings.seed + task.number) % MOST_SEED
        order, rows = bert.pack(sizes, self.capacity, self.settings.max_samples, seed)
        with writing(Path(self.settings.output)):
            np.savez(task.plan(self.folder), lengths=sizes, order=order, rows=rows)
            sync(task.plan(self.folder))
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


def _lengths(block: Arrays, task: PackTask) -> NDArray[np.int32]:
    mask = block["input_mask"]
    lengths: NDArray[np.int32] = mask.sum(axis=1, dtype=np.int32)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]) or not lengths.all():
        raise DataError(f"{task}: input_mask is not ones and then zeros in every row; run recipe verify on the inputs")
    return lengths


def _blocks(task: PackTask) -> Iterator[Arrays]:
    for part in task.ranges:
        with shards.opened(part.path) as file:
            shape = shards.shape_of(file, part.path)
            for start in range(part.start, part.stop, shape.rows_at_once):
                yield shards.read(file, part.path, shape, start, min(start + shape.rows_at_once, part.stop))


@dataclass(frozen=True)
class WriteRows:
    """Second stage, in a worker process: write the rows of a task."""

    settings: PreparePacked
    capacity: int
    predictions: int
    slots: int
    folder: Path

    @property
    def row_bytes(self) -> int:
        """Approximate bytes per sample in the inputs."""
        return 6 * self.capacity

    def __call__(self, task: PackTask) -> dict[str, Any]:
        """Write the shard; returns its facts."""
        with np.load(task.plan(self.folder)) as plan:
            lengths, order, rows = plan["lengths"], plan["order"], plan["rows"]
        path = self.folder / task.name
        blocks = self._packed(_samples(task, lengths.size), lengths, order, rows)
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


def _samples(task: PackTask, count: int) -> Arrays:
    # All samples of a task in memory, since a row takes them from anywhere; without the masks, which lengths replace.
    samples: Arrays = {}
    done = 0
    for block in _blocks(task):
        for name, values in block.items():
            if name != "input_mask":
                target = samples.setdefault(name, np.empty((count, *values.shape[1:]), values.dtype))
                target[done : done + len(values)] = values
        done += len(block["input_mask"])
    return samples


def _counts(plans: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {name: sum(plan[name] for plan in plans) for name in ("samples", "rows", "tokens")}


def _metadata(plans: Sequence[Mapping[str, Any]], capacity: int, sequence: int) -> dict[str, Any]:
    # The names are those that Habana's scripts read.
    counts = _counts(plans)
    patterns: Counter[tuple[int, ...]] = Counter()
    for plan in plans:
        patterns.update({tuple(lengths): count for lengths, count in plan["patterns"]})
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
