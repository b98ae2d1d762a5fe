"""Frozen parameters and adapters train to the same weights under every layout, and resume exactly after a stop."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from recipe_core.hooks.registry import load
from recipe_core.testing import spawn
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

LAYOUTS = {
    "single": (1, ["layout=single"]), "ddp": (2, ["layout=ddp"]), "zero1": (2, ["layout=zero1"]),
    "fsdp": (2, ["layout=fsdp"]), "tp": (2, ["layout=tp"]),
    "tp, sequence": (2, ["layout=tp", "layout.sequence_parallel=true"]), "pp": (2, ["layout=pp"]),
}  # fmt: skip
"""Processes and arguments of each."""
STEPS = 4
SAME = [
    "model.dropout=0", "model.attention_dropout=0", f"train.steps={STEPS}", "train.log_every=1", "train.lr=1e-2",
    "train.eval_every=0",
    "train.eps=1e-3",  # or Adam turns rounding errors of the smallest gradients into updates
]  # fmt: skip
GPT = ["model.positions=32", "data.sequence=32"]
LORA = ["transforms=lora", "transform.lora.rank=2"]
# With two stages and two blocks, the first stage has nothing to train.
FREEZE = ["transforms=freeze", "transform.freeze.modules=tokens,positions,blocks.0,blocks.1.*.bias"]
BERT_LORA = [
    *LORA, "transform.lora.targets=query,value,dense", "transform.lora.trained=cls.seq_relationship,*.LayerNorm",
]  # fmt: skip
CASES = {
    "lora-gpt": ("megatron_gpt", [*GPT, *LORA], list(LAYOUTS)),
    "freeze-gpt": ("megatron_gpt", [*GPT, *FREEZE], ["single", "ddp", "fsdp", "tp", "pp"]),
    "lora-bert": ("bert_dp", BERT_LORA, ["single", "ddp", "fsdp", "tp", "tp, sequence"]),
}  # fmt: skip
pytestmark = pytest.mark.timeout(600)


def whole_and_halves(
    folder: str, recipe: str, words: Sequence[str], layouts: Mapping[str, Sequence[str]], cut: int
) -> None:
    """Body of one process: each layout, whole, and stopped after ``cut`` steps."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

    registry, store, processes = load(), os.environ.get("RECIPE_STORE"), int(os.environ["WORLD_SIZE"])
    runs = [(f"{name}-whole", own, []) for name, own in layouts.items()]
    for name, own in layouts.items():
        runs += [(f"{name}-halves", own, [f"train.stop_after={cut}"]), (f"{name}-halves", own, [])]
    for number, (name, own, more) in enumerate(runs):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        job = checked_job(registry, f"{recipe}:tiny", [*words, *SAME, *own, *more], processes)
        run(job, Path(folder, name))
        _clear_sharding_prop_cache()  # or DTensor uses meshes of this run, whose groups are destroyed


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder / METRICS) if "loss" in row]


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors(folder).items() if name.startswith("model.")}


@pytest.mark.parametrize("case", CASES)
def test_transforms_under_every_layout_and_after_a_stop(case: str, tmp_path: Path) -> None:
    recipe, words, names = CASES[case]
    cut = random.Random(os.getpid()).randrange(1, STEPS)
    for processes in (1, 2):
        layouts = {name: LAYOUTS[name][1] for name in names if LAYOUTS[name][0] == processes}
        spawn(whole_and_halves, processes, str(tmp_path), recipe, words, layouts, cut)
    alone, curve = weights(tmp_path / "single-whole"), losses(tmp_path / "single-whole")
    trained = {name for name in tensors(tmp_path / "single-whole") if name.startswith("optimizer.")}
    assert trained
    assert len(curve) == STEPS
    if "lora" in case:
        assert all("lora_" in name or "LayerNorm" in name or "seq_relationship" in name for name in trained)
        assert all(alone[name].abs().max() > 1e-4 for name in alone if name.endswith("lora_b"))
    for name in names:
        whole, halves = tmp_path / f"{name}-whole", tmp_path / f"{name}-halves"
        assert losses(whole) == pytest.approx(curve, abs=1e-5), name
        own = weights(whole)
        assert own.keys() == alone.keys(), name
        for key, tensor in own.items():
            tolerance = 1e-5 if any(key.removeprefix("model.") in one for one in trained) else 0.0
            assert float((tensor - alone[key]).abs().max()) <= tolerance, (name, key)
        assert equal(tensors(halves), tensors(whole)), f"{name}, stopped after {cut}"
        assert losses(halves) == losses(whole), f"{name}, stopped after {cut}"
