"""The end of a run: results.json, curves and closing summary."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recipe_core.errors import ExitCode
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.metrics.report import warn
from recipe_core.train.metrics.results import conclude, measured
from recipe_hf_finetune.results.pictures import draw_curves
from recipe_hf_finetune.settings import settings
from recipe_hf_finetune.trainer.seed_run import MODEL, SeedRun, Shared

Outcome = Mapping[str, Any]
CURVE = "learning-curve.png"


def close(
    shared: Shared, out: Path, seed_runs: Sequence[SeedRun], outcomes: Sequence[Outcome], signal: str | None
) -> dict[str, Any]:
    """Write and print the results of the finished fine-tunings; rank 0 calls it.

    ``signal`` names the signal that stopped the run.
    """
    job, rows = shared.job, read_rows(out / METRICS, warn)
    step = int(outcomes[0]["step"]) if outcomes else max((row["step"] for row in rows), default=0)
    results: dict[str, Any] = {
        "recipe": job.name, "step": step, "steps": job.train.steps, "stopped": signal,
        "exit_code": int(ExitCode.STOPPED if signal else ExitCode.FINISHED),
        "consumed_samples": rows[-1].get("consumed_samples", 0) if rows else 0, **measured(rows),
        "world_size": shared.engine.world_size, "device": shared.engine.device.type, "torch": torch.__version__,
    }  # fmt: skip
    if outcomes:
        results |= {name: value for name, value in outcomes[0]["metrics"].items() if name != "loss"}
        results |= {name: value for name, value in outcomes[0].items() if name.endswith("_metrics")}
        results["legs"] = [dict(outcome) for outcome in outcomes]
        results |= _spreads(outcomes)
        curves = {seed_run.title: read_rows(seed_run.folder / METRICS, warn) for seed_run in seed_runs[: len(outcomes)]}
        draw_curves(curves, shared.corpus.task.metrics[0], out / CURVE)
    if accepted := shared.identity.get("accepted"):
        results["accepted"] = accepted
    results["notes"] = _notes(shared, seed_runs, outcomes)
    if (epochs := settings(job.train).epochs) is not None:
        results["twice"] = f"train.epochs={2 * epochs:g}"
    conclude(results, job, out)
    return results


def _spreads(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    # Mean and standard deviation of each metric over the seeds, for the trained and for the random start.
    results: dict[str, Any] = {}
    for name, random in (("over_seeds", False), ("random_start", True)):
        by_seed = [outcome["metrics"] for outcome in outcomes if outcome["random_start"] == random]
        if by_seed:
            results[name] = {
                key: {
                    "mean": statistics.fmean(values),
                    "std": statistics.stdev(values) if len(values) > 1 else None,
                    "values": values,
                }
                for key in by_seed[0]
                for values in [[metrics[key] for metrics in by_seed]]
            }
    return results


def _notes(shared: Shared, seed_runs: Sequence[SeedRun], outcomes: Sequence[Outcome]) -> dict[str, str]:
    notes: dict[str, str] = {}
    if outcomes:
        spreads = _spreads(outcomes)
        both = "random_start" in spreads
        for name, label in (
            ("over_seeds", "trained start" if both else "validation"),
            ("random_start", "random start"),
        ):
            if name in spreads:
                notes[label] = ", ".join(_spread(key, value) for key, value in spreads[name].items() if key != "loss")
        for name, spread in outcomes[0].items():
            if name.endswith("_metrics"):  # MNLI's second validation split, or a test split with labels
                notes[name.removesuffix("_metrics")] = ", ".join(
                    f"{k} {v:.4f}" for k, v in spread.items() if k != "loss"
                )
        notes["model"] = f"{MODEL}/, for from_pretrained"
        notes["look at"] = f"predictions-validation.tsv, {CURVE}" + ", confusion.png" * bool(shared.corpus.labels)
    if len(outcomes) < len(seed_runs) and outcomes:
        left = "; ".join(seed_run.title for seed_run in seed_runs[len(outcomes) :])
        notes["not done yet"] = f"{left}; the same line with --out goes on"
    return notes


def _spread(name: str, spread: Mapping[str, Any]) -> str:
    if spread["std"] is None:
        return f"{name} {spread['mean']:.4f}"
    return f"{name} {spread['mean']:.4f} +- {spread['std']:.4f} ({len(spread['values'])} seeds)"
