"""Contributions of this plugin: the engine xla, and the checkpoint formats of the libraries around it."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import CheckpointFormat, EngineSpec, hookimpl
from recipe_xla.settings import NxdSettings, XlaSettings, XserSettings

_DIVIDED = ("zero1", "fsdp", "tp", "pp")
"""Layouts of the core that one function builds, by their settings."""


@hookimpl
def register_engines() -> Iterable[EngineSpec]:
    """PyTorch/XLA: CPU, AWS Neuron up to torch 2.9, TPU."""
    yield EngineSpec(
        name="xla",
        build="recipe_xla.engine:build",
        config=XlaSettings,
        claims="recipe_xla.machine:claims",
        problems="recipe_xla.machine:problems",
        environment="recipe_xla.variables:variables",
        layouts={
            "single": "recipe_xla.layouts.replicated:build",
            "ddp": "recipe_xla.layouts.replicated:build",
            **dict.fromkeys(_DIVIDED, "recipe_xla.layouts.divided:build"),
        },
        optimizers={"adamw": "recipe_xla.optim:adamw", "lamb": "recipe_xla.optim:lamb"},
        one_process="recipe_xla.machine:one_process",
        precompile="recipe_xla.compiler:precompile",
        findings="recipe_xla.doctor:findings",
        traced=True,
        summary="PyTorch/XLA, on the device that PJRT_DEVICE names (CPU, NEURON, TPU)",
    )


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """neuronx-distributed's folders and torch_xla's files; converting needs neither package."""
    yield CheckpointFormat(
        name="nxd",
        build="recipe_xla.checkpoint.nxd:Nxd",
        config=NxdSettings,
        patterns=("model/dp_rank_*.pt", "*/model/dp_rank_*.pt", "tp_rank_*_pp_rank_??"),
        ranks=True,
        holds=("model", "optimizer", "progress", "epoch"),
        summary="a folder for neuronx-distributed, a file for each tensor-parallel and pipeline rank; for conversion",
    )
    yield CheckpointFormat(
        name="xser",
        build="recipe_xla.checkpoint.xser:Xser",
        config=XserSettings,
        patterns=("*.xser",),
        ranks=True,
        holds=("model", "optimizer", "progress", "epoch"),
        summary="files of torch_xla's serialization, each tensor by itself; for conversion",
    )
