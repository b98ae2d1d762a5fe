"""Settings of the model, the data, the preparations and the checkpoint format, in this order. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from recipe_core import too_small
from recipe_core.data.text_settings import TextInput

SPECIAL_TOKENS = 3
"""[CLS] and two [SEP] in every sample."""
MOST_SEQUENCE = 65_535
MOST_SEED = (1 << 31) - 1
LEAST_VOCABULARY = 500
"""Entries that a trained vocabulary has room for: the letters of the corpus, alone and inside words, and some words."""


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
    """Sizes where none is set below; ``custom``: none, so set layers, hidden and heads."""
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
        """The sizes that are set, and those of ``size`` for the others."""
        if self.size in PUBLISHED:
            base = asdict(PUBLISHED[self.size])
        else:
            base = {"intermediate": 4 * (self.hidden or 0), "positions": 512, "vocabulary": 30522}
        for field in fields(Sizes):
            if (value := getattr(self, field.name)) is not None:
                base[field.name] = value
        return Sizes(**base)

    def resolved(self) -> dict[str, Any]:
        """All settings with the sizes that are in force, without ``size``."""
        return {name: value for name, value in {**asdict(self), **asdict(self.sizes)}.items() if name != "size"}

    def _sizes_missing(self) -> list[str]:
        if self.size in PUBLISHED:
            return []
        missing = [name for name in ("layers", "hidden", "heads") if getattr(self, name) is None]
        known = " or ".join(PUBLISHED)
        return [f"{name}: size=custom needs it; give a number, or set size={known}" for name in missing]


@dataclass(frozen=True, kw_only=True)
class BertHdf5:
    """HDF5 shards of BERT's pre-training, plain or packed, as ``recipe prepare`` and NVIDIA's scripts make them; or the
    embedded corpus where no file is named."""

    files: tuple[str, ...] = ()
    """Folders, or single shards. In a folder, ``*training*.hdf5`` is for training and ``*test*.hdf5`` for validation,
    at any depth. None: the English text that CPython carries, prepared once per machine."""
    packed: bool | None = None
    """Rows with several samples: ``true`` takes packed shards only, ``false`` plain ones only; unless given,
    the files decide, and the embedded corpus is packed. A sample of ``train.global_batch`` is a row."""
    sequence: int = 128
    """Tokens of a row; the shards must have been made for it."""
    max_predictions: int = 20
    """Masked tokens of a sample at most."""
    vocabulary: int = 8192
    """Entries of the WordPiece vocabulary that is trained for the embedded corpus."""

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
class PrepareHdf5(TextInput):
    """Text to HDF5 shards. The defaults are those of phase 1; phase 2: ``sequence=512 max_predictions=80``."""

    vocabulary: str = ""
    """BERT's vocab.txt: one piece per line."""
    output: str = ""
    """Folder to make."""
    overwrite: bool = False
    """Replace the folder ``output``, if it is an earlier data set with nothing else in it, and no input. It stays until
    the new one is complete."""
    workers: int = 0
    """Processes; 0 takes one per core, and fewer where the input is small. The files do not depend on it."""
    seed: int = 1234
    """Seed of pairs, masks and the shard of each sample."""
    lowercase: bool = True
    """For an uncased vocabulary: letters become small and lose their accents."""
    sequence: int = 128
    """Tokens of a sample, special tokens and padding included."""
    max_predictions: int = 20
    """Masked tokens of a sample at most."""
    masked_lm_prob: float = 0.15
    """Share of a sample's tokens that are to be predicted."""
    short_seq_prob: float = 0.1
    """Share of the documents that are cut into samples of a random shorter length."""
    whole_word_mask: bool = False
    """Mask all pieces of a word, or none."""
    dupe_factor: int = 5
    """How often each training document is used, with other pairs and masks each time. Test documents are used once."""
    test_share: float = 0.01
    """Share of the documents that go to the test shards; 0 makes none."""
    samples_per_shard: int = 65_536
    """About how many samples a shard has; chance decides about each."""
    gzip: bool = True
    """Compress the shards."""

    def __post_init__(self) -> None:
        problems = []
        try:
            super().__post_init__()
        except ValueError as error:
            problems.append(str(error))
        problems += _missing(self, "vocabulary", "output")
        problems += _out_of_range(self, workers=(0, 4096), seed=(0, MOST_SEED), sequence=(5, MOST_SEQUENCE))
        problems += _out_of_range(self, dupe_factor=(1, 10_000), samples_per_shard=(1, 1 << 30))
        problems += _out_of_range(self, short_seq_prob=(0, 1), test_share=(0, 0.5))
        if not 0 < self.masked_lm_prob < 1:
            problems.append(f"masked_lm_prob: expected more than 0 and less than 1, got {self.masked_lm_prob}")
        else:
            problems += self._predictions()
        if problems:
            raise ValueError("\n".join(problems))

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
    """HDF5 shards to packed HDF5 shards, from any shards in the layout of ``bert_hdf5``."""

    inputs: tuple[str, ...] = ()
    """Folders with shards, or single shards."""
    output: str = ""
    """Folder to make."""
    overwrite: bool = False
    """Replace the folder ``output``, if it is an earlier data set with nothing else in it, and no input. It stays until
    the new one is complete."""
    workers: int = 0
    """Processes; 0 takes one per core, and fewer where the input is small. The files do not depend on it."""
    seed: int = 1234
    """Of the order of the rows in a shard."""
    sequence: int = 0
    """Tokens of a row; 0: as many as the rows of the inputs have."""
    max_samples: int = 3
    """Samples in a row at most; 0: as many as fit."""
    samples_per_shard: int = 65_536
    """Samples that are packed together, into one shard."""
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
    """``ckpt_<step>.pt`` of Neuron's and NVIDIA's BERT scripts."""

    names: Literal["hf", "nvidia"] = "hf"
    """Names of the tensors: Hugging Face's, as Neuron's script writes them, or NVIDIA's (``dense_act``). Both are
    read."""
    files: tuple[str, ...] = ()
    """Names of the shards that a script goes on with in the middle of an epoch; unless given, those of the run. Scripts
    read one after the other, a run of ours from all at a time: the number in front of the names, the script's next
    shard, says how much of the epoch is done."""


def _missing(settings: object, *names: str) -> list[str]:
    return [f"{name}: expected a path, got nothing" for name in names if not getattr(settings, name)]


def _out_of_range(settings: object, **ranges: tuple[float, float]) -> list[str]:
    values = {name: getattr(settings, name) for name in ranges}
    return [
        f"{name}: expected from {low} to {high}, got {values[name]}"
        for name, (low, high) in ranges.items()
        if not low <= values[name] <= high
    ]
