"""The ratio to a peer in each stored result; falls against an earlier one, and the table in README.md.

    python benchmarks/ratios.py                      # the table
    python benchmarks/ratios.py --write              # ... into README.md
    python benchmarks/ratios.py --against FOLDER     # falls of results/ against the results stored in FOLDER

A ratio says how many times better ours is than the peer: seconds of the peer by ours, or samples of ours by the peer's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FALL = 0.15
"""A ratio that is so much lower than the stored one is a fall."""
MARKS = "<!-- rows: benchmarks/ratios.py --write -->", "<!-- end of rows -->"


@dataclass(frozen=True)
class Figure:
    """Where a result has the figures of one case: paths of keys, with ``/`` between them."""

    case: str
    ours: str
    peer: str
    floor: str = ""
    ratio: str = ""
    """Where the result has it by itself: a median of ratios by round, say."""
    unit: str = "s"
    rounds: str = "rounds"
    """A number, or the list of all measurements."""

    @property
    def lower(self) -> bool:
        """True if less is better."""
        return self.unit in ("s", "ms", "MB")


def _trained(case: str, peer: str, per_second: str) -> Figure:
    return Figure(
        case, f"results/{case}/recipe/{per_second}", f"results/{case}/{peer}/{per_second}",
        f"results/{case}/floor/{per_second}", f"results/{case}/recipe/times_faster", f"{per_second.split('_')[0]}/s",
        f"results/{case}/rounds",
    )  # fmt: skip


def _loaded(case: str) -> Figure:
    floor = "" if "uncompressed" in case else f"{case}/floor/samples_per_second"
    return Figure(
        case, f"{case}/median/recipe", f"{case}/median/single samples", floor, f"{case}/ratio/median", "samples/s",
        f"{case}/all/recipe",
    )  # fmt: skip


def _stepped(case: str, peer: str) -> Figure:
    return Figure(case, f"seconds/{case}", f"seconds/{peer}", f"floor_seconds/{case}", rounds=f"measurements/{case}")


def _started(case: str) -> Figure:
    return Figure(
        f"{case}, processor time", f"cases/{case}/processor/all", f"cases/{case}/peer", rounds=f"cases/{case}/rounds"
    )


FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "index_build": tuple(
        Figure(case, f"results/{case}/seconds", "results/megatron-core/seconds", "results/floor/seconds")
        for case in ("recipe_index, fast", "recipe_index, megatron")
    ),
    "gather": (
        Figure("shuffled batches", "median/recipe", "median/megatron_core", "median/floor", "ratio/median", "samples/s",
               "all/recipe"),
    ),
    "load_bert": tuple(
        _loaded(f"phase {phase}, {kind}") for phase in (1, 2) for kind in ("compressed", "uncompressed")
    ),
    "prepare_gpt": tuple(
        Figure(f"{size}, {engine}, ratio alone", "", "", ratio=f"{size}/times_megatron_as_command/{engine}",
               rounds=f"{size}/turns/{engine}")
        for size in ("12 MB", "96 MB") for engine in ("tokenizers", "gigatoken")
    ),
    "prepare_bert": tuple(
        Figure(f"{kind}, ratio alone", "", "", ratio=f"{kind}/ratio/median", rounds=f"{kind}/ratio/all")
        for kind in ("uncompressed", "gzip")
    ),
    "prepare_part": tuple(
        Figure(
            f"{case}, {engine}, {peer}", f"cases/{case}/sides/{engine}/mb_per_processor_second",
            f"cases/{case}/sides/{peer}/mb_per_processor_second",
            ratio=f"cases/{case}/times_faster_processor/{engine}/{peer}", unit="MB/s", rounds=f"cases/{case}/rounds",
        )
        for case in ("part", "beyond the start", "start") for engine in ("tokenizers", "gigatoken")
        for peer in ("megatron", "datatrove", "curator")
    ),
    "scale": tuple(
        Figure(f"{case}, {engine}", f"engines/{engine}/cases/{case}/seconds",
               f"engines/{engine}/cases/{case}/floor_seconds")
        for engine in ("tokenizers", "gigatoken")
        for case in ("10,000 files, 4,000 parts", "10,000 files, 20,000 parts", "one file, 4,000 parts",
                     "one file, 20,000 parts")
    ),
    "many_files": tuple(
        Figure(f"{kind}, {cache}", f"cases/{kind}/sides/{cache}/seconds", f"cases/{kind}/sides/bare/seconds")
        for kind in ("token files", "shards") for cache in ("empty cache", "again")
    ),
    "pack": tuple(
        Figure(case, f"{case}, recipe/seconds", f"{case}, best fit decreasing/seconds", rounds="")
        for case in ("million, 3 a row", "million, any number a row")
    ),
    "train_gpt": tuple(
        _trained(case, "transformers", "tokens_per_second")
        for case in ("dropout", "plain", "pure", "fp32", "fp32_plain")
    ),
    "train_llama": tuple(
        Figure(
            f"{precision}, {ours}, {peer}", f"results/{precision}/{ours}/tokens_per_second",
            f"results/{precision}/{peer}/tokens_per_second", f"results/{precision}/rows/{rows}/floor/tokens_per_second",
            f"results/{precision}/{ours}/times_faster/{peer}/median", "tokens/s", f"results/{precision}/rounds",
        )
        for precision in ("fp32", "bf16_mixed")
        for ours, rows, peer in (
            ("recipe", "plain", "transformers"), ("recipe", "plain", "litgpt"),
            ("recipe, documents", "documents", "transformers, documents"),
            ("recipe, packed", "packed", "transformers, documents"),
        )
    ),
    "train_bert": tuple(_trained(case, "script", "sequences_per_second") for case in ("mixed", "pure", "fp32")),
    "train_bert_packed": tuple(
        Figure(
            case, f"results/{case}/real_tokens_per_second/packed", f"results/{case}/real_tokens_per_second/plain",
            ratio=f"results/{case}/gain", unit="real tokens/s", rounds=f"results/{case}/share_of_promise_by_round",
        )
        for case in ("articles", "paragraphs")
    ),
    "optimizer": (
        _stepped("recipe adamw fp32", "torch adamw unfused, fp32"),
        _stepped("recipe adamw bf16", "torch adamw unfused, bf16"),
        _stepped("recipe adamw bf16, master", "torch adamw unfused, fp32"),
    ),
    "step": tuple(
        Figure(case, f"results/{case}/recipe_ms", f"results/{case}/bare_ms", unit="ms")
        for case in ("every step", "every 50")
    ),
    "start": tuple(_started(case) for case in ("tiny, empty cache", "tiny, warm cache", "default, empty cache",
                                                "default, warm cache", "resume")),
    "shared_machine": tuple(
        Figure(f"beside {case}", f"cases/{case}/recipe/ms", f"cases/{case}/pytorch/ms", unit="ms",
               rounds=f"cases/{case}/recipe/rounds")
        for case in ("nothing", "two busy loops", "a second run", "four PyTorch processes")
    ) + tuple(
        Figure(f"beside {case}, {peer}", f"cases/{case}/recipe/ms", f"cases/{case}/{key}/ms", unit="ms",
               rounds=f"cases/{case}/{key}/rounds")
        for peer, key in (("the Trainer", "trainer"), ("litgpt", "litgpt"))
        for case in ("nothing", "two busy loops", "a second run", "four PyTorch processes")
    ) + tuple(
        Figure(f"under {case}", f"cases/{case}/recipe/ms", f"cases/{case}/OMP_NUM_THREADS=2/ms", unit="ms",
               rounds=f"cases/{case}/recipe/rounds")
        for case in ("a quota of 0.5 cores", "a quota of 1 cores", "a quota of 1.5 cores")
    ),
    "layout_memory": tuple(
        Figure(case, f"layouts/{case}/peak", f"layouts/{case}/ideal", unit="MB", rounds="")
        for case in ("zero1 2", "fsdp 2", "tp 2", "pp 2")
    ),
    "save": (
        Figure("training held up", "seconds/recipe, training held up", "seconds/torch.save",
               "seconds/floor: copy into used memory", rounds="measurements/torch.save"),
    ),
    "convert": tuple(
        Figure(case, f"cases/{case}/seconds", "cases/dcp_to_torch_save/seconds", "copy_seconds", rounds="")
        for case in ("dcp to hf", "dcp to megatron, tp 2, pp 2", "megatron, tp 2, pp 2, to dcp", "dcp to nxd, tp 2")
    ) + (
        Figure("verify", "cases/verify/seconds", "cases/sha256sum/seconds", rounds=""),
    ),
}  # fmt: skip
"""By the name of the result; those whose result lacks a case leave it out."""


@dataclass(frozen=True)
class Row:
    """One case of a stored result."""

    name: str
    case: str
    ratio: float
    ours: float | None
    peer: float | None
    floor: float | None
    unit: str
    rounds: str
    machine: str
    date: str


def rows(folder: Path = RESULTS) -> Iterator[Row]:
    """Every case of the results in ``folder`` for which there are figures."""
    for name in FIGURES:
        path = folder / f"{name}.json"
        yield from rows_of(name, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})


def rows_of(name: str, result: Mapping[str, Any]) -> Iterator[Row]:
    """The cases of one result for which there are figures."""
    for figure in FIGURES.get(name, ()):
        if (row := _row(name, figure, result)) is not None:
            yield row


def _row(name: str, figure: Figure, result: Mapping[str, Any]) -> Row | None:
    ours, peer, floor = (_at(result, path) for path in (figure.ours, figure.peer, figure.floor))
    ratio = _at(result, figure.ratio)
    if ratio is None:
        if ours is None or peer is None:
            return None
        ratio = peer / ours if figure.lower else ours / peer
    rounds = _at(result, figure.rounds)
    count = len(rounds) if isinstance(rounds, list) else rounds
    return Row(
        name, figure.case, ratio, ours, peer, floor, figure.unit, str(count or "-"),
        str(result.get("processor", "-")), _date(result, figure.ours or figure.ratio),
    )  # fmt: skip


def _date(result: Mapping[str, Any], path: str) -> str:
    """The date nearest to the figure: cases that were not rerun keep theirs."""
    parts = path.split("/")
    dates = (_at(result, "/".join([*parts[:depth], "date"])) for depth in range(len(parts), -1, -1))
    return str(next(filter(None, dates), "-"))


def _at(result: Mapping[str, Any], path: str) -> Any:
    found: Any = result if path else None
    for key in path.split("/"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def falls(stored: Iterable[Row], now: Iterable[Row]) -> list[str]:
    """A line for each case whose ratio is more than :data:`FALL` below the stored one."""
    before = {(row.name, row.case): row for row in stored}
    lines = []
    for row in now:
        old = before.get((row.name, row.case))
        if old is not None and row.ratio < (1 - FALL) * old.ratio:
            other = f"; stored on {old.machine}, now {row.machine}" if old.machine != row.machine else ""
            lines.append(
                f"{row.name}, {row.case}: {row.ratio:.2f} times the peer, stored {old.ratio:.2f} of {old.date} "
                f"(a fall of {1 - row.ratio / old.ratio:.0%}{other})"
            )
    return lines


def table(folder: Path = RESULTS) -> str:
    """All rows in Markdown."""
    heads = ("benchmark", "case", "floor", "ours", "peer", "ratio", "machine", "date", "rounds")
    lines = [heads, ("---",) * len(heads)]
    for row in rows(folder):
        figures = (_shown(value, row.unit) for value in (row.floor, row.ours, row.peer))
        lines.append((row.name, row.case, *figures, f"{row.ratio:.2f}", row.machine, row.date, row.rounds))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    value = value / 1e6 if unit == "MB" else value
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def main() -> None:
    """The command line; ends with 1 where a ratio has fallen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="renew the table in README.md")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="print falls against the results stored there")
    options = parser.parse_args()
    if options.against:
        fallen = falls(rows(options.against), rows())
        print("\n".join(fallen) or f"no ratio is more than {FALL:.0%} below the stored one")
        sys.exit(bool(fallen))
    if not options.write:
        print(table())
        return
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    readme.write_text(f"{before}{MARKS[0]}\n{table()}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
