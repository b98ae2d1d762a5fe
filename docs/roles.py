"""Draw the pictures of docs/explanation/roles.md: the tensors of each of two ranks, in each role of a tensor plan."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "pictures"
COLORS = ("#3b7dd8", "#e08a1e")
WIDTH, ROW, SIDE, LEFT, EDGE = 720, 92, 56, 110, 50


class Tensor(NamedTuple):
    """A square; the filled part is the rank's shard."""

    label: str
    part: str = "whole"
    """``whole``, or ``rows`` or ``columns`` if each rank has half of them."""


class Exchange(NamedTuple):
    """An arrow; its text is the communication between the ranks."""

    text: str = ""


Step = Tensor | Exchange
STREAM, HALF = Tensor("stream"), Tensor("stream: own positions", "rows")
PICTURES: dict[str, tuple[Step, ...]] = {
    "vocabulary_in": (
        Tensor("ids"), Exchange(), Tensor("weight: own words", "rows"), Exchange("all-reduce"), STREAM,
    ),
    "column": (
        STREAM, Exchange(), Tensor("weight: own outputs", "rows"), Exchange(), Tensor("own features", "columns"),
    ),
    "row": (
        Tensor("own features", "columns"), Exchange(), Tensor("weight: own inputs", "columns"),
        Exchange("all-reduce"), STREAM,
    ),
    "split": (
        STREAM, Exchange(), Tensor("columns", "rows"), Exchange(), Tensor("own heads", "columns"), Exchange(),
        Tensor("row", "columns"), Exchange("all-reduce"), STREAM,
    ),
    "sequence": (HALF, Exchange(), Tensor("weight: a copy"), Exchange(), HALF),
    "replicated": (
        HALF, Exchange("all-gather"), Tensor("whole sequence"), Exchange(), Tensor("weight: a copy"), Exchange(),
        Tensor("whole sequence"),
    ),
    "whole": (Tensor("whole sequence"), Exchange(), Tensor("weight: a copy"), Exchange(), Tensor("whole sequence")),
    "vocabulary_out": (
        Tensor("whole sequence"), Exchange(), Tensor("weight: own words", "rows"), Exchange("all-gather"),
        Tensor("all logits"),
    ),
}  # fmt: skip


def picture(steps: tuple[Step, ...]) -> str:
    """Return the SVG of a role."""
    height = 2 * ROW + 28
    shapes = [f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>']
    arrows = sum(isinstance(step, Exchange) for step in steps)
    room = (WIDTH - LEFT - EDGE - (arrows + 1) * SIDE) / arrows
    for rank, color in enumerate(COLORS):
        y, x = 14 + rank * ROW, float(LEFT)
        shapes.append(text(14, y + SIDE / 2 + 4, f"rank {rank}", "start", color))
        for step in steps:
            if isinstance(step, Tensor):
                shapes += [*square(x, y, step.part, rank, color), text(x + SIDE / 2, y + SIDE + 16, step.label)]
                x += SIDE
            else:
                shapes.append(arrow(x + 8, x + room - 8, y + SIDE / 2))
                x += room
    x = float(LEFT)
    for step in steps:
        x += SIDE if isinstance(step, Tensor) else room
        if isinstance(step, Exchange) and step.text:
            middle = x - room / 2
            shapes.append(
                f'<path d="M{middle} {14 + SIDE / 2} V{14 + ROW + SIDE / 2}" stroke="#57606a" stroke-width="2"/>'
            )
            shapes.append(f'<rect x="{middle - 38}" y="{ROW - 6}" width="76" height="20" rx="4" fill="#eaeef2"/>')
            shapes.append(text(middle, ROW + 8, step.text))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
    return f'{head}font-family="sans-serif" font-size="12">\n' + "\n".join(shapes) + "\n</svg>\n"


def square(x: float, y: float, part: str, rank: int, color: str) -> list[str]:
    """Return a square with the rank's shard filled."""
    half = SIDE / 2
    left, top = x + half * (part == "columns" and rank), y + half * (part == "rows" and rank)
    width, height = (half if part == "columns" else SIDE), (half if part == "rows" else SIDE)
    return [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="{color}" fill-opacity="0.75"/>',
        f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#57606a"/>',
    ]


def arrow(start: float, stop: float, y: float) -> str:
    """Return an arrow from one tensor to the next."""
    return f'<path d="M{start} {y} H{stop} m-6 -4 l6 4 l-6 4" fill="none" stroke="#57606a" stroke-width="1.5"/>'


def text(x: float, y: float, words: str, anchor: str = "middle", color: str = "#24292f") -> str:
    """Return a label."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def pages() -> dict[Path, str]:
    """Map the path of each picture to its SVG."""
    return {FOLDER / f"role-{role}.svg": picture(steps) for role, steps in PICTURES.items()}
