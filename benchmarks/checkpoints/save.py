"""How long saving holds up training: a run's checkpoint beside torch.save of the same state.

The state is that of GPT-2 124M under AdamW in fp32: 1.5 GB in some 450 tensors. Ours is ``Saver.save`` as the training
loop calls it, and ``before_update`` at once, as if the next step took no time: training is held up by the copy of all
that the thread has not read by then. The thread writes the state, syncs it, hashes it and gives it its name; "until
written" is how long it then takes alone. The peer is ``torch.save`` of the same state into a file on the same disk,
without fsync, and with it. They take turns. ``memory`` is the growth of the resident peak over that with the state, as
a share of its size, where the update comes at once, and where it comes when the thread has read everything.

The floor is a copy of the same tensors into memory that has been used before.

    PYTHONPATH=benchmarks python benchmarks/checkpoints/save.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.saving.background import Saver
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.engine.memory import keep_freed_memory, peak_resident
from recipe_core.settings.fill import flat
from recipe_megatron_gpt.model.gpt import build
from recipe_megatron_gpt.settings import Gpt

MODEL = Gpt(layers=12, hidden=768, heads=12, positions=1024, vocabulary=50304)


class Alone:
    """One rank."""

    rank, world_size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        """Its own value."""
        return [value]


def state_of(model: Gpt) -> dict[str, Any]:
    """Weights and two moments each."""
    module, _ = build(model)
    weights = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    moments = {name: {kind: torch.randn_like(t) for kind in ("exp_avg", "exp_avg_sq")} for name, t in weights.items()}
    return {"model": weights, "optimizer": {"state": moments}, "progress": {"step": 1, "consumed_samples": 8}}


def seconds(action: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def held_up(saver: Saver, step: int, state: dict[str, Any]) -> None:
    """Save where the next update of the optimizer comes at once."""
    saver.save(step, state, None)
    saver.before_update()


def growth(update: str, layers: int) -> dict[str, float]:
    """How much a save adds to this process's resident peak, as a share of the state's size."""
    keep_freed_memory()
    state = state_of(Gpt(**{**vars(MODEL), "layers": layers}))
    size = sum(leaf.nbytes for _, leaf in flat(state) if isinstance(leaf, torch.Tensor))
    before = peak_resident() or 0
    with (
        tempfile.TemporaryDirectory() as name,
        Saver(Checkpoints(Path(name), Dcp(), Alone(), keep=1), background=True) as saver,
    ):
        saver.save(1, state, None)
        if update == "at once":
            saver.before_update()
        saver.wait()
    return {"share": round(((peak_resident() or 0) - before) / size, 2)}


def synced(path: Path) -> None:
    """Have a file on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def main() -> None:
    """Measure in turns and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=MODEL.layers, help="fewer for a trial, which is not stored")
    parser.add_argument("--growth", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.growth:
        print(json.dumps(growth(options.growth, options.layers)))
        return
    keep_freed_memory()  # as a run on a CPU does
    state = state_of(Gpt(**{**vars(MODEL), "layers": options.layers}))
    leaves = [leaf for _, leaf in flat(state) if isinstance(leaf, torch.Tensor)]
    buffers = [torch.zeros_like(leaf) for leaf in leaves]
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        file, checkpoints = Path(name) / "peer.pt", Checkpoints(Path(name) / "ours", Dcp(), Alone(), keep=1)
        with Saver(checkpoints, background=True) as saver:
            for step in range(options.rounds):
                for case, action in {
                    "floor: copy into used memory": lambda: [b.copy_(t) for b, t in zip(buffers, leaves, strict=True)],
                    "recipe, training held up": lambda step=step: held_up(saver, step, state),
                    "recipe, until written": saver.wait,
                    "torch.save": lambda: torch.save(state, file),
                    "its fsync": lambda: synced(file),
                }.items():
                    found.setdefault(case, []).append(seconds(action))
                file.unlink()
    medians = {case: statistics.median(values) for case, values in found.items()}
    results = {
        "processor": common.processor(), "versions": common.versions("torch"),
        "megabytes": sum(leaf.nbytes for leaf in leaves) / 1e6, "tensors": len(leaves), "seconds": medians,
        "held_up_per_torch_save": medians["recipe, training held up"] / medians["torch.save"],
        "held_up_per_torch_save_and_fsync":
            medians["recipe, training held up"] / (medians["torch.save"] + medians["its fsync"]),
        "measurements": found,
        "memory": {
            update: common.in_new_process(__file__, "--growth", update, "--layers", str(options.layers))["share"]
            for update in ("at once", "later")
        },
    }  # fmt: skip
    if options.layers == MODEL.layers:
        common.write("save", results)
    print(json.dumps({key: value for key, value in results.items() if key != "measurements"}, indent=2))


if __name__ == "__main__":
    main()
