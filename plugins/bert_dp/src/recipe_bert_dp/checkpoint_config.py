"""Settings of the checkpoint format ``neuron_bert``. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class NeuronBert:
    """``ckpt_<step>.pt`` of Neuron's and NVIDIA's BERT scripts."""

    names: Literal["hf", "nvidia"] = "hf"
    """Names of the tensors: Hugging Face's, as Neuron's script writes them, or NVIDIA's (``dense_act``). Both are
    read."""
    files: tuple[str, ...] = ()
    """Names of the shards that a script goes on with in the middle of an epoch; unless given, those of the run. Scripts
    read one after the other, a run of ours from all at a time: the number in front of the names, the script's next
    shard, says how much of the epoch is done."""
