"""The cases of the campaign: model, sizes and batches on a large GPU, and tiny ones for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model at one sequence length, trained by each contestant in the same batches."""

    name: str
    family: str
    """``bert``, ``gpt`` or ``finetune``."""
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    micro_batch: int
    global_batch: int
    packed: bool = False
    """Our rows hold several sequences, those of the peers one each, with padding."""
    dropout: float = 0.1
    recompute: bool = False
    """Activation checkpointing, on both sides."""
    dry: bool = False
    """On the CPU, to see that all of it works."""

    @property
    def unit(self) -> str:
        """The unit of speeds: tokens or sequences a second."""
        return "tokens" if self.family == "gpt" else "sequences"

    @property
    def device(self) -> str:
        """The type of the device."""
        return "cpu" if self.dry else "cuda"

    @property
    def predictions(self) -> int:
        """Masked places of a row: 20 of 128, 80 of 512, as published."""
        return -(-self.sequence * 20 // 128)

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of a step."""
        return self.global_batch // self.micro_batch


_LARGE = {"family": "bert", "layers": 24, "hidden": 1024, "heads": 16, "vocabulary": 30522}
_GPT = {"family": "gpt", "vocabulary": 50304, "dropout": 0.0}
CASES = (
    Case(name="bert-large-128", sequence=128, micro_batch=256, global_batch=1024, **_LARGE),
    Case(name="bert-large-512-packed", sequence=512, micro_batch=64, global_batch=256, packed=True, **_LARGE),
    Case(name="gpt2-124m", layers=12, hidden=768, heads=12, sequence=1024, micro_batch=64, global_batch=256, **_GPT),
    Case(name="gpt-1.3b", layers=24, hidden=2048, heads=16, sequence=2048, micro_batch=8, global_batch=32, **_GPT),
    Case(
        name="gpt-6.7b", layers=32, hidden=4096, heads=32, sequence=2048, micro_batch=2, global_batch=8,
        recompute=True, **_GPT,
    ),
    Case(
        name="finetune-pairs", family="finetune", layers=12, hidden=768, heads=12, sequence=128, vocabulary=8192,
        micro_batch=32, global_batch=32,
    ),
)  # fmt: skip
"""Models and sequences as published: Devlin and others (2019), Radford and others (2019), Brown and others (2020)."""


def case_of(name: str, *, dry: bool) -> Case:
    """The case ``name``; ``dry``: the same in tiny, for a CPU."""
    case = next(one for one in CASES if one.name == name)
    if not dry:
        return case
    vocabulary = 1024 if case.family == "finetune" else 512
    return replace(
        case, layers=2, hidden=64, heads=2, sequence=64 if case.packed else 32, vocabulary=vocabulary, micro_batch=2,
        global_batch=4, dry=True,
    )  # fmt: skip
