"""What the core itself contributes, through the same hooks as any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core.checkpoint.settings import MegatronSettings, NxdSettings, XserSettings
from recipe_core.hooks.hooks import hookimpl
from recipe_core.hooks.specs import CheckpointFormat, Layout
from recipe_core.layouts.settings import Ddp, Fsdp, Pp, Single, Tp, Zero1


@dataclass(frozen=True, kw_only=True)
class HfSettings:
    """A folder for Hugging Face."""

    shard_gb: float = 5.0
    """Gigabytes (10^9 bytes) of a file of tensors at most; more are divided into several files with an index."""

    def __post_init__(self) -> None:
        if not self.shard_gb > 0:
            raise ValueError(f"shard_gb: expected more than 0, got {self.shard_gb}")


@hookimpl
def register_layouts() -> Iterable[Layout]:
    """From one process to teams that share layers; each but the first two combines several ways."""
    yield Layout(
        name="single",
        build="recipe_core.layouts.replicated:single",
        config=Single,
        summary="one process holds the model",
    )
    yield Layout(
        name="ddp",
        build="recipe_core.layouts.replicated:ddp",
        config=Ddp,
        summary="data parallel: every rank holds the whole model and its part of the batch",
    )
    yield Layout(
        name="zero1",
        build="recipe_core.layouts.divided:divided",
        config=Zero1,
        divides=True,
        summary="data parallel, with the optimizer's states shared out over the ranks",
    )
    yield Layout(
        name="fsdp",
        build="recipe_core.layouts.divided:divided",
        config=Fsdp,
        divides=True,
        summary="data parallel, with weights, gradients and optimizer states shared out over the ranks",
    )
    yield Layout(
        name="tp",
        build="recipe_core.layouts.divided:divided",
        config=Tp,
        divides=True,
        summary="tensor parallel: teams of ranks share each layer; among teams ddp, zero1 or fsdp",
    )
    yield Layout(
        name="pp",
        build="recipe_core.layouts.divided:divided",
        config=Pp,
        divides=True,
        summary="pipeline parallel: ranks or teams hold consecutive blocks",
    )


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """PyTorch's own formats, and Hugging Face's."""
    yield CheckpointFormat(
        name="dcp",
        build="recipe_core.checkpoint.formats.dcp:Dcp",
        patterns=(".metadata",),
        stages=True,
        summary="torch.distributed.checkpoint: sharded, loads into any layout",
    )
    yield CheckpointFormat(
        name="single",
        build="recipe_core.checkpoint.formats.single:Single",
        patterns=("checkpoint.pt",),
        summary="one file that torch.load(weights_only=True) reads; written by rank 0",
    )
    yield CheckpointFormat(
        name="hf",
        build="recipe_core.checkpoint.formats.hf:Hf",
        config=HfSettings,
        patterns=("model.safetensors", "pytorch_model.bin", "*.safetensors.index.json", "pytorch_model.bin.index.json"),
        holds=("model", "files"),
        naming="hf",
        whole=("shard_gb=1e9",),
        summary="a folder for Hugging Face's from_pretrained: weights and config.json; for conversion",
    )
    yield CheckpointFormat(
        name="megatron",
        build="recipe_core.checkpoint.formats.megatron:MegatronFormat",
        config=MegatronSettings,
        patterns=(
            "latest_checkpointed_iteration.txt",
            "model_optim_rng.pt",
            "mp_rank_*/model_optim_rng.pt",
            "iter_*/mp_rank_*/model_optim_rng.pt",
        ),
        naming="megatron",
        ranks=True,
        pads=True,
        summary="a folder for Megatron-LM, a file for each tensor-parallel and pipeline rank; for conversion",
    )
    yield CheckpointFormat(
        name="nxd",
        build="recipe_core.xla.checkpoint.nxd:Nxd",
        config=NxdSettings,
        patterns=("model/dp_rank_*.pt", "*/model/dp_rank_*.pt", "tp_rank_*_pp_rank_??"),
        ranks=True,
        holds=("model", "optimizer", "progress", "epoch"),
        summary="a folder for neuronx-distributed, a file for each tensor-parallel and pipeline rank; for conversion",
    )
    yield CheckpointFormat(
        name="xser",
        build="recipe_core.xla.checkpoint.xser:Xser",
        config=XserSettings,
        patterns=("*.xser",),
        ranks=True,
        holds=("model", "optimizer", "progress", "epoch"),
        summary="files of torch_xla's serialization, each tensor by itself; for conversion",
    )
