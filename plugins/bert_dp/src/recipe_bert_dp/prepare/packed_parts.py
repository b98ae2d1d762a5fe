"""Parts of ``recipe prepare bert_packed``.

A shard is packed from samples of its own, so a part makes some of the shards. Only the width of their rows depends on
all of them: the merge widens the shards of parts whose rows need fewer places than others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.shards import Arrays
from recipe_bert_dp.prepare.pack import KIND, VOCABULARY, Packing, Widths, finish, run_tasks, widths_of
from recipe_bert_dp.prepare.workers import fitting
from recipe_bert_dp.settings import PreparePacked
from recipe_core.data.prepare import (
    Output,
    PreparedPart,
    PreparePart,
    Section,
    file_facts,
    hashed_part,
    join_files,
    merged_inputs,
    ordered_map,
    sha256,
    writing,
)


def prepare_part(settings: PreparePacked, part: PreparePart) -> dict[str, Any]:
    """Pack the shards of a part into the folder ``settings.output``; returns its manifest.

    Raises:
        ConfigError, DataError, DiskError: as by ``prepare``; a part may be empty.
    """
    work = Packing.of(settings)
    tasks = work.tasks[slice(*part.range_of(len(work.tasks)))]
    sizes = {fact["path"]: (0, fact["bytes"]) for fact in work.facts}
    read = {str(rows.path): sizes[str(rows.path)] for task in tasks for rows in task.ranges}
    with work.output(part) as output:
        hashes = hashed_part(work.facts, part, read, lambda paths: {path: [sizes[path]] for path in paths})
        plans, widths, files = run_tasks(work, tasks, output)
        vocabulary = work.vocabulary
        if vocabulary:
            with output.writing():
                shutil.copyfile(vocabulary, output.folder / VOCABULARY)
                files |= file_facts(output.folder, [VOCABULARY])
        return output.finish(
            {
                "kind": KIND,
                "part": str(part),
                "same": {
                    "capacity": work.capacity,
                    "sequence": work.shape.sequence,
                    "predictions": work.shape.predictions,
                    "vocab.txt": sha256(vocabulary) if vocabulary else None,
                },
                "settings": work.plain,
                "counts": {name: sum(plan[name] for plan in plans.values()) for name in ("samples", "rows", "tokens")},
                "plans": plans,
                "widths": [widths.predictions, widths.slots] if widths else None,
                **hashes(),
                "files": files,
                "versions": {"recipe-bert-dp": version("recipe-bert-dp")},
            }
        )


def merge(settings: PreparePacked, parts: Sequence[PreparedPart]) -> dict[str, Any]:
    """Put the shards of all parts into the folder ``settings.output``, as one process packs them.

    Returns:
        The manifest.

    Raises:
        ConfigError: the output exists.
        DataError: a part is damaged.
        DiskError: no space is left.
    """
    same = parts[0].manifest["same"]
    plans = {name: plan for part in parts for name, plan in part.manifest["plans"].items()}
    plans = dict(sorted(plans.items()))
    widths = widths_of(settings, same["predictions"], plans)
    key = {"merge": KIND, "parts": [[str(part), part.manifest["files"]] for part in parts]}
    reads = [part.folder for part in parts]
    with Output(Path(settings.output).expanduser(), key, reads=reads, overwrite=False) as output:
        with output.writing():
            for name in plans:
                (output.folder / name).parent.mkdir(exist_ok=True)
        tasks = [(_only(part, name), name) for part in parts for name in part.manifest["plans"]]
        size = sum(part.size(name) for part, name in tasks)
        put = PutShard(settings, widths, output.folder)
        results = ordered_map(put, tasks, fitting(settings.workers, size, len(tasks)), _describe)
        files = {name: facts for (_, name), facts in zip(tasks, results, strict=True)}
        vocabulary = None
        if same["vocab.txt"]:
            vocabulary = parts[0].folder / VOCABULARY
            for part in parts:
                part.read(VOCABULARY)
        files = dict(sorted(files.items()))
        plain, inputs = parts[0].manifest["settings"], merged_inputs(parts)
        return finish(plain, same["capacity"], same["sequence"], plans, files, inputs, vocabulary, output)


def _only(part: PreparedPart, name: str) -> PreparedPart:
    # what a worker process needs of the manifest
    facts, rows = part.manifest["files"][name], part.manifest["plans"][name]["rows"]
    return replace(part, manifest={"files": {name: facts}, "rows": rows, "widths": part.manifest["widths"]})


def _describe(task: tuple[PreparedPart, str]) -> str:
    return f"the shard {task[0].folder / task[1]}"


@dataclass(frozen=True)
class PutShard:
    """Copies a shard of a part, or writes it with wider rows, in a worker process."""

    settings: PreparePacked
    widths: Widths
    folder: Path

    def __call__(self, task: tuple[PreparedPart, str]) -> dict[str, Any]:
        """Write the shard; returns its facts."""
        part, name = task
        path, rows = self.folder / name, int(part.manifest["rows"])
        with writing(Path(self.settings.output)):
            if [self.widths.predictions, self.widths.slots] == part.manifest["widths"]:
                join_files(path, [Section(part, name, 0)])
            else:
                if sha256(part.folder / name) != part.sha256(name):
                    raise part.damaged(name)
                blocks = self._widened(part.folder / name)
                shards.write(path, rows, blocks, shards.PACKED, gzip=self.settings.gzip)
        return {"bytes": path.stat().st_size, "sha256": sha256(path), "rows": rows}

    def _widened(self, path: Path) -> Iterator[Arrays]:
        widen = partial(_widen, predictions=self.widths.predictions, slots=self.widths.slots)
        with shards.opened(path) as file:
            shape = shards.shape_of(file, path)
            for start in range(0, shape.rows, shards.ROWS_AT_ONCE):
                block = shards.read(file, path, shape, start, min(start + shards.ROWS_AT_ONCE, shape.rows))
                yield {name: widen(name, values) for name, values in block.items()}


def _widen(name: str, values: Any, predictions: int, slots: int) -> Any:
    # places without a prediction or a sample are zeros, after the used ones
    width = {"m": predictions, "n": slots}.get(name[0], values.shape[1])
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))
