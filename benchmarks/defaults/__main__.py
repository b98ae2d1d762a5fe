"""The default runs over seeds and precisions: do their results depend on luck?

Each recipe runs with its defaults for every precision and seed. hf_finetune fine-tunes bert_dp's model of the same
precision and seed, and random weights. The table shows mean and spread (smallest and largest) of each result, and for
hf_finetune the lead: accuracy from the trained model minus accuracy from random weights.

Precisions: ``fp32``; ``bf16_mixed``, as this processor computes it; and ``emulated``, bf16_mixed with products rounded
as by a processor with bf16 instructions, for machines without (:mod:`emulated/bf16_products.py`). Without such
instructions bf16_mixed multiplies in fp32, with the same result as fp32.

A case takes minutes. results/defaults.json keeps finished cases and --out their runs; the same command resumes with
the missing ones. ``--name`` and ``--set`` measure other settings of hf_finetune next to the default's, on the same
trained models.

    python benchmarks/defaults --out runs/defaults --seeds 1 2 3 4 5
    python benchmarks/defaults --out runs/defaults --recipes hf_finetune --name before --set train.epochs=2
    python benchmarks/defaults --table
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import common  # noqa: E402  # from the folder above

RECIPES = ("bert_dp", "hf_finetune", "megatron_gpt", "bert_tp")
PRECISIONS = ("fp32", "bf16_mixed", "emulated")
SHOWN = {
    "bert_dp": {"val_mlm_loss": 1.0, "val_nsp_accuracy": 100.0},
    "bert_tp": {"val_mlm_loss": 1.0, "val_nsp_accuracy": 100.0},
    "megatron_gpt": {"val_loss": 1.0},
    "hf_finetune": {"trained": 100.0, "random": 100.0, "lead": 100.0},
}
"""The metrics shown for each recipe, and the factor of each."""


def main() -> None:
    """Run the missing cases one after the other and print the table."""
    asked = _arguments()
    if asked.table:
        print(table(common.read("defaults")["cases"]))
        return
    for recipe, precision, seed in _cases(asked):
        key = "/".join([recipe if recipe != "hf_finetune" else f"hf_finetune ({asked.name})", precision, str(seed)])
        if key in common.read("defaults").get("cases", {}):
            continue
        found = (
            _hf_finetune(asked, precision, seed) if recipe == "hf_finetune" else _run(asked, recipe, precision, seed)
        )
        _store(key, found)
        print(key, json.dumps(found), flush=True)
    print(table(common.read("defaults")["cases"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"), help="folder of the runs")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS[:2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--name", default="default", help="name of these settings of hf_finetune")
    parser.add_argument("--set", nargs="+", default=[], metavar="WORD", help="settings of hf_finetune: train.epochs=2")
    parser.add_argument("--table", action="store_true", help="print what is known, and run nothing")
    return parser.parse_args()


def _cases(asked: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for seed in asked.seeds:
        for precision in asked.precisions:
            for recipe in asked.recipes:
                yield recipe, precision, seed


def _run(asked: argparse.Namespace, recipe: str, precision: str, seed: int) -> dict[str, float]:
    results = _recipe(asked.out / f"{recipe}-{precision}-{seed}", precision, recipe, f"train.seed={seed}")
    return {name: results[name] for name in SHOWN[recipe]}


def _hf_finetune(asked: argparse.Namespace, precision: str, seed: int) -> dict[str, float]:
    """Return the accuracies from the trained model of this precision and seed, and from random weights."""
    _run(asked, "bert_dp", precision, seed)
    source = asked.out / f"bert_dp-{precision}-{seed}"
    out = asked.out / f"hf_finetune-{asked.name}-{precision}-{seed}"
    words = (f"model.source={source}", f"train.seed={seed}", *asked.set)
    results = _recipe(out, precision, "hf_finetune", *words)
    trained, random = (results[part]["accuracy"]["mean"] for part in ("over_seeds", "random_start"))
    return {"trained": trained, "random": random, "lead": trained - random}


def _recipe(out: Path, precision: str, recipe: str, *words: str) -> dict[str, Any]:
    """Start or resume the run in ``out`` unless it is finished; return its results.json."""
    path = out / "results.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not found or found["step"] < found["steps"] or (recipe == "hf_finetune" and "random_start" not in found):
        kind = "fp32" if precision == "fp32" else "bf16_mixed"
        line = [sys.executable, "-m", "recipe_core.cli", "run", recipe, *words, f"train.precision={kind}", "--out"]
        env = dict(os.environ)
        if precision == "emulated":
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "emulated"), env.get("PYTHONPATH")]))
        done = subprocess.run([*line, str(out)], env=env, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            sys.exit(f"{' '.join([*line, str(out)])}: exit code {done.returncode}")
        found = json.loads(path.read_text(encoding="utf-8"))
    result: dict[str, Any] = found
    return result


def _store(key: str, found: dict[str, float]) -> None:
    from recipe_core.engine.precision import multiplies_bf16

    processor = f"{common.processor()}, {'with' if multiplies_bf16('cpu') else 'without'} bf16 instructions"
    written = {
        "what": "what the default runs come to, by recipe, precision and seed",
        "processor": "named by each case",  # so that cases of several processors are kept
        "versions": common.versions("torch", "transformers"),
        "cases": {key: {**{name: round(value, 4) for name, value in found.items()}, "processor": processor}},
    }
    common.write("defaults", common.with_earlier("defaults", written, ["cases"]))


def table(cases: dict[str, dict[str, Any]]) -> str:
    """Return mean and spread over the seeds, one line for each recipe and precision."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, values in cases.items():
        recipe, precision, _ = key.split("/")
        groups.setdefault((recipe, precision), []).append(values)
    lines = ["| recipe | precision | seeds | |", "|---|---|---|---|"]
    for (recipe, precision), found in sorted(groups.items()):
        shown = SHOWN[recipe.split(" ")[0]]
        texts = (f"{name} {_spread((one[name] for one in found), scale)}" for name, scale in shown.items())
        lines.append(f"| {recipe} | {precision} | {len(found)} | {', '.join(texts)} |")
    return "\n".join(lines)


def _spread(values: Iterable[float], scale: float) -> str:
    numbers = [scale * value for value in values]
    digits = 1 if scale > 1 else 3
    mean, least, most = (f"{number:.{digits}f}" for number in (statistics.fmean(numbers), min(numbers), max(numbers)))
    return f"{mean} ({least} to {most})"


if __name__ == "__main__":
    main()
