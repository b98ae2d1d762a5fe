"""Settings of the model, the data, the preparations and the checkpoint format, in this order. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from recipe_core import too_small
from recipe_core.data.filters.settings import FilteredInput

SPECIAL_TOKENS = 3
"""[CLS] and two [SEP] in every sample."""
MOST_SEQUENCE = 65_535
MOST_SEED = (1 << 31) - 1
LEAST_VOCABULARY = 500
"""Smallest vocabulary that can be trained: letters, at the start of a word and inside, and some words."""


@dataclass(frozen=True, kw_only=True)
class BertSizes:
    """The dimensions of a BERT."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    """Width between the two linear layers of a block."""
    positions: int
    """Maximum sequence length: rows of the position embedding."""
    vocabulary: int
    """Rows of the word embedding, and logits per prediction."""


PUBLISHED = {
    "bert-base-uncased": BertSizes(layers=12, hidden=768, heads=12, intermediate=3072, positions=512, vocabulary=30522),
    "bert-large-uncased": BertSizes(
        layers=24, hidden=1024, heads=16, intermediate=4096, positions=512, vocabulary=30522
    ),
}
"""Devlin and others, "BERT" (2019), and the configurations published with it."""


@dataclass(frozen=True, kw_only=True)
class BertPretraining:
    """BERT with its pre-training heads, as Hugging Face's BertForPreTraining."""

    size: Literal["bert-base-uncased", "bert-large-uncased", "custom"] = "bert-base-uncased"
    """Defaults of the sizes below; ``custom`` has none, so set layers, hidden and heads."""
    layers: int | None = None
    """Number of blocks, each with attention and two linear layers."""
    hidden: int | None = None
    """Hidden size."""
    heads: int | None = None
    """Number of attention heads, a divisor of ``hidden``."""
    intermediate: int | None = None
    """Width between the two linear layers of a block; with a custom size, 4 times ``hidden`` by default."""
    positions: int | None = None
    """Maximum sequence length: rows of the position embedding; 512 by default."""
    vocabulary: int | None = None
    """Vocabulary size, the number of lines of vocab.txt; 30522 by default."""
    dropout: float = 0.1
    """Dropout probability after the embeddings, the attention and the linear layers of a block."""
    attention_dropout: float = 0.1
    """Dropout probability on the attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        problems = self._sizes_missing() + too_small(self, 1, *(field.name for field in fields(BertSizes)))
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
    def sizes(self) -> BertSizes:
        """The sizes that are set, with those of ``size`` as defaults."""
        if self.size in PUBLISHED:
            base = asdict(PUBLISHED[self.size])
        else:
            base = {"intermediate": 4 * (self.hidden or 0), "positions": 512, "vocabulary": 30522}
        for field in fields(BertSizes):
            if (value := getattr(self, field.name)) is not None:
                base[field.name] = value
        return BertSizes(**base)

    def resolved(self) -> dict[str, Any]:
        """All settings with their resolved sizes, without ``size``."""
        return {name: value for name, value in {**asdict(self), **asdict(self.sizes)}.items() if name != "size"}

    def _sizes_missing(self) -> list[str]:
        if self.size in PUBLISHED:
            return []
        missing = [name for name in ("layers", "hidden", "heads") if getattr(self, name) is None]
        known = " or ".join(PUBLISHED)
        return [f"{name}: size=custom needs it; give a number, or set size={known}" for name in missing]


@dataclass(frozen=True, kw_only=True)
class BertHdf5:
    """HDF5 shards for BERT pre-training, plain or packed, as written by ``recipe prepare`` and NVIDIA's scripts;
    without files, the embedded corpus."""

    files: tuple[str, ...] = ()
    """Folders, single shards, patterns, or ``@LIST``: a file with such a path in each line. In a folder,
    ``*training*.hdf5`` is for training and ``*test*.hdf5`` for validation, at any depth. Empty: the English text that
    ships with CPython, prepared once per machine."""
    packed: bool | None = None
    """Several samples per row: ``true`` accepts packed shards only, ``false`` plain ones only; by default, both, and
    the embedded corpus is packed. ``train.global_batch`` counts rows."""
    sequence: int = 128
    """Tokens per row, as in the shards."""
    max_predictions: int = 20
    """Maximum number of masked tokens per sample."""
    vocabulary: int = 8192
    """Size of the WordPiece vocabulary that is trained for the embedded corpus."""

    def __post_init__(self) -> None:
        problems = _out_of_range(self, sequence=(5, MOST_SEQUENCE), vocabulary=(LEAST_VOCABULARY, 1 << 20))
        problems += too_small(self, 1, "max_predictions")
        most = self.sequence - SPECIAL_TOKENS
        if not self.files and self.max_predictions > most >= 1:  # the embedded corpus is prepared with it
            problems.append(
                f"max_predictions: expected at most sequence - {SPECIAL_TOKENS} = {most}, got {self.max_predictions}"
            )
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class PrepareHdf5(FilteredInput):
    """Text to HDF5 shards. Defaults are for phase 1; for phase 2, set ``sequence=512 max_predictions=80``."""

    vocabulary: str = ""
    """BERT's vocab.txt: one piece per line."""
    output: str = ""
    """Output folder."""
    overwrite: bool = False
    """Replace the folder ``output`` if it is an earlier data set that holds nothing else and no input. The old data set
    stays until the new one is complete."""
    workers: int = 0
    """Number of processes; 0: one per core, fewer for small inputs. The files do not depend on it."""
    seed: int = 1234
    """Seed of pairs, masks and the assignment of samples to shards."""
    lowercase: bool = True
    """Lowercase the text and strip accents, for an uncased vocabulary."""
    sequence: int = 128
    """Tokens per sample, including special tokens and padding."""
    max_predictions: int = 20
    """Maximum number of masked tokens per sample."""
    masked_lm_prob: float = 0.15
    """Fraction of a sample's tokens to predict."""
    short_seq_prob: float = 0.1
    """Fraction of the documents that are cut into samples of a random shorter length."""
    whole_word_mask: bool = False
    """Mask all pieces of a word, or none."""
    dupe_factor: int = 5
    """Passes over each training document, each with other pairs and masks. Test documents are used once."""
    test_share: float = 0.01
    """Fraction of the documents for the test shards; 0 writes none."""
    samples_per_shard: int = 65_536
    """Approximate number of samples per shard; samples are assigned at random."""
    gzip: bool = True
    """Compress the shards."""

    def problems(self) -> list[str]:
        """Return the problems of the settings, those of the texts first."""
        problems = [*super().problems(), *_missing(self, "vocabulary", "output")]
        problems += _out_of_range(self, workers=(0, 4096), seed=(0, MOST_SEED), sequence=(5, MOST_SEQUENCE))
        problems += _out_of_range(self, dupe_factor=(1, 10_000), samples_per_shard=(1, 1 << 30))
        problems += _out_of_range(self, short_seq_prob=(0, 1), test_share=(0, 0.5))
        if not 0 < self.masked_lm_prob < 1:
            problems.append(f"masked_lm_prob: expected more than 0 and less than 1, got {self.masked_lm_prob}")
        else:
            problems += self._predictions()
        return problems

    def _predictions(self) -> list[str]:
        wanted = int(self.sequence * self.masked_lm_prob)
        if self.max_predictions < max(1, wanted):
            return [
                f"max_predictions: {self.max_predictions} contradicts sequence={self.sequence}, of which "
                f"masked_lm_prob={self.masked_lm_prob} is {wanted} predictions; raise it (20 is usual at 128, 80 at "
                "512), or lower masked_lm_prob"
            ]
        if self.max_predictions > self.sequence - SPECIAL_TOKENS:
            return [
                f"max_predictions: expected at most sequence - {SPECIAL_TOKENS} = {self.sequence - SPECIAL_TOKENS}, "
                f"got {self.max_predictions}"
            ]
        return []


@dataclass(frozen=True, kw_only=True)
class PreparePacked:
    """HDF5 shards in the layout of ``bert_hdf5`` to packed HDF5 shards."""

    inputs: tuple[str, ...] = ()
    """Folders with shards, or single shards."""
    output: str = ""
    """Output folder."""
    overwrite: bool = False
    """Replace the folder ``output`` if it is an earlier data set that holds nothing else and no input. The old data set
    stays until the new one is complete."""
    workers: int = 0
    """Number of processes; 0: one per core, fewer for small inputs. The files do not depend on it."""
    seed: int = 1234
    """Seed of the order of rows in a shard."""
    sequence: int = 0
    """Tokens per row; 0: as in the inputs."""
    max_samples: int = 3
    """Maximum number of samples per row; 0: as many as fit."""
    samples_per_shard: int = 65_536
    """Number of samples that are packed into one shard."""
    gzip: bool = True
    """Compress the shards."""

    def __post_init__(self) -> None:
        problems = [] if self.inputs else ["inputs: expected at least one folder or shard"]
        problems += _missing(self, "output")
        problems += _out_of_range(self, workers=(0, 4096), seed=(0, MOST_SEED), max_samples=(0, MOST_SEQUENCE))
        problems += _out_of_range(self, sequence=(0, MOST_SEQUENCE), samples_per_shard=(1, 1 << 24))
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class NeuronBert:
    """Files ``ckpt_<step>.pt`` of Neuron's and NVIDIA's BERT scripts."""

    names: Literal["hf", "nvidia"] = "hf"
    """Names of the tensors in written files: Hugging Face's, as in Neuron's script, or NVIDIA's (``dense_act``). Both
    can be read."""
    files: tuple[str, ...] = ()
    """Names of the shards with which a script continues in the middle of an epoch; by default those of the run. A
    script reads one shard after another, a run reads from all at once: the index in the file, the script's next shard,
    is the completed fraction of the epoch times the number of shards."""


def _missing(settings: object, *names: str) -> list[str]:
    return [f"{name}: expected a path, got nothing" for name in names if not getattr(settings, name)]


def _out_of_range(settings: object, **ranges: tuple[float, float]) -> list[str]:
    values = {name: getattr(settings, name) for name in ranges}
    return [
        f"{name}: expected from {low} to {high}, got {values[name]}"
        for name, (low, high) in ranges.items()
        if not low <= values[name] <= high
    ]
