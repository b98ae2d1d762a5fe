"""Settings of the model ``bert_pretraining``. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from recipe_core.settings import too_small


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The dimensions of a BERT."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    """Width between the two linear layers of a block."""
    positions: int
    """Longest sequence: rows of the position embedding."""
    vocabulary: int
    """Rows of the word embedding, and entries of what is predicted."""


PUBLISHED = {
    "bert-base-uncased": Sizes(layers=12, hidden=768, heads=12, intermediate=3072, positions=512, vocabulary=30522),
    "bert-large-uncased": Sizes(layers=24, hidden=1024, heads=16, intermediate=4096, positions=512, vocabulary=30522),
}
"""Devlin and others, "BERT" (2019), and the configurations published with it."""


@dataclass(frozen=True, kw_only=True)
class BertPretraining:
    """BERT with the heads of its pre-training, as Hugging Face's BertForPreTraining."""

    size: Literal["bert-base-uncased", "bert-large-uncased", "custom"] = "bert-base-uncased"
    """Whose sizes to take where none is given below; ``custom``: nobody's, so give layers, hidden and heads."""
    layers: int | None = None
    """Blocks, each attention and two linear layers."""
    hidden: int | None = None
    """Width of what goes from block to block."""
    heads: int | None = None
    """Attention heads; ``hidden`` divides by them."""
    intermediate: int | None = None
    """Width between the two linear layers of a block; of a custom size, 4 times ``hidden`` unless given."""
    positions: int | None = None
    """Longest sequence: rows of the position embedding; 512 unless given."""
    vocabulary: int | None = None
    """Token ids that it takes and predicts, those of vocab.txt; 30522 unless given."""
    dropout: float = 0.1
    """After the embeddings, the attention and the linear layers of a block."""
    attention_dropout: float = 0.1
    """On the attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        problems = self._sizes_missing() + too_small(self, 1, *(field.name for field in fields(Sizes)))
        if not problems and self.sizes.hidden % self.sizes.heads:
            problems.append(f"hidden: {self.sizes.hidden} does not divide into {self.sizes.heads} heads")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                problems.append(f"{name}: expected 0 to below 1, got {getattr(self, name)}")
        if not self.init_std > 0:
            problems.append(f"init_std: expected more than 0, got {self.init_std}")
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def sizes(self) -> Sizes:
        """What is given, filled up with what ``size`` says."""
        if self.size in PUBLISHED:
            base = asdict(PUBLISHED[self.size])
        else:
            base = {"intermediate": 4 * (self.hidden or 0), "positions": 512, "vocabulary": 30522}
        for field in fields(Sizes):
            if (value := getattr(self, field.name)) is not None:
                base[field.name] = value
        return Sizes(**base)

    def resolved(self) -> dict[str, Any]:
        """All settings with the sizes that are in force, whatever they are called (``size``)."""
        return {name: value for name, value in {**asdict(self), **asdict(self.sizes)}.items() if name != "size"}

    def _sizes_missing(self) -> list[str]:
        if self.size in PUBLISHED:
            return []
        missing = [name for name in ("layers", "hidden", "heads") if getattr(self, name) is None]
        known = " or ".join(PUBLISHED)
        return [f"{name}: size=custom needs it; give a number, or set size={known}" for name in missing]
