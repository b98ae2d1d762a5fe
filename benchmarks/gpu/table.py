"""The results of all cases as one JSON file and one Markdown table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from part import ROOF

HEAD = (
    "case", "contestant", "speed", "of the best peer", "MFU", "of the roof", "first step", "peak memory",
    "`check` says", "idle", "largest costs",
)  # fmt: skip
Parts = Mapping[str, Mapping[str, Any]]


def best_peer(parts: Parts) -> float | None:
    """The speed of the fastest peer that was measured."""
    return max(
        (part["per_second"] for name, part in parts.items() if not name.startswith("recipe") and "per_second" in part),
        default=None,
    )


def summary(parts: Parts) -> dict[str, Any]:
    """Each contestant's speed beside the fastest peer's and the roof."""
    peer, floor = best_peer(parts), parts.get(ROOF, {}).get("seconds_per_step")
    found = {}
    for name, part in parts.items():
        if "per_second" in part and name != ROOF:
            found[name] = {
                "of_best_peer": part["per_second"] / peer if peer else None,
                "of_roof": floor / part["seconds_per_step"] if floor else None,
            }
    return found


def markdown(results: Mapping[str, Any]) -> str:
    """A row for each contestant of each case; of one that failed, the reason."""
    machine = results["machine"]
    lines = [
        f"# {results['what']}", "",
        f"{machine['device']}; {machine['processor']}; "
        + ", ".join(f"{name} {number}" for name, number in machine["versions"].items()) + f"; {machine['date']}", "",
        "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD),
    ]  # fmt: skip
    for case, written in results["cases"].items():
        parts = written["parts"]
        compared = summary(parts)
        for name, part in parts.items():
            lines.append("| " + " | ".join(_cells(case, name, part, compared.get(name, {}))) + " |")
    return "\n".join([*lines, ""])


def _cells(case: str, name: str, part: Mapping[str, Any], compared: Mapping[str, Any]) -> list[str]:
    if "failed" in part:
        return [case, name, f"failed: {_escaped(part['failed'])}", *[""] * (len(HEAD) - 3)]
    if name == ROOF:
        told = f"{part['matmul_peak_tflops']} TFLOP/s, {part['bandwidth_gb_per_second']} GB/s"
        return [case, name, f"{part['seconds_per_step']:.3f} s a step", *[""] * (len(HEAD) - 4), told]
    costs = "; ".join(f"{cost['share']:.0%} {_escaped(cost['name'][:60])}" for cost in part.get("largest_costs", ()))
    return [
        case, name, f"{part['per_second']:,.1f} {part['unit']}", _number(compared.get("of_best_peer"), ".2f"),
        _number(part.get("mfu"), ".1%"), _number(compared.get("of_roof"), ".1%"), f"{part['first_step_seconds']:.1f} s",
        _gigabytes(part.get("peak_memory")), _gigabytes(part.get("estimate")), _number(part.get("idle_share"), ".1%"),
        costs,
    ]  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _gigabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e9:.1f} GB"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
