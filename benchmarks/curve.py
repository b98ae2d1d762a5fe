"""Draw the loss curves of runs: ``python benchmarks/curve.py RUN [RUN ...] --to curve.png`` (needs matplotlib)."""

from __future__ import annotations

import argparse
from pathlib import Path

from recipe_core.curves import read_rows


def main() -> None:
    """Training and validation loss of each run over its steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, default=Path("curve.png"))
    arguments = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=110)
    for run in arguments.runs:
        rows = read_rows(run / "metrics.jsonl")
        for key, style in (("loss", "-"), ("val_loss", "o--")):
            points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
            steps, values = zip(*points, strict=True)
            label = "training loss" if key == "loss" else f"validation loss: {values[0]:.2f} to {values[-1]:.2f}"
            axes.plot(steps, values, style, markersize=4, linewidth=1.3, label=f"{run.name}: {label}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(arguments.to)


if __name__ == "__main__":
    main()
