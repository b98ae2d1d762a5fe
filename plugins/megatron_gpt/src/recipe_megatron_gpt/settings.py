"""Settings of the model, the data, the preparation and the checkpoint format. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from recipe_core import too_small
from recipe_core.data.filters.settings import FilteredInput
from recipe_core.files.named import problem_of, split_weights

TRAIN = "train"
"""Value of ``tokenizer``: train one on the input."""


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """A decoder-only transformer as Megatron-LM trains it."""

    layers: int = 4
    """Number of transformer blocks, each with attention and an MLP."""
    hidden: int = 256
    """Width of the residual stream; the MLP is four times as wide."""
    heads: int = 4
    """Attention heads; ``hidden`` must be a multiple of them."""
    positions: int = 256
    """Longest sequence: rows of the learned position embedding."""
    vocabulary: int = 8192
    """Rows of the token embedding; pad it to a multiple of 128 for speed."""
    dropout: float = 0.1
    """Dropout probability after the embeddings, the attention and the MLP."""
    attention_dropout: float = 0.1
    """Dropout probability on the attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of the initial weights, divided by the square root of twice the layers for matrices that write
    to the residual stream."""

    def __post_init__(self) -> None:
        problems = too_small(self, 1, "layers", "hidden", "heads", "positions", "vocabulary")
        if self.heads > 0 and self.hidden % self.heads:
            problems.append(f"hidden: {self.hidden} does not divide into {self.heads} heads")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                problems.append(f"{name}: expected 0 to below 1, got {getattr(self, name)}")
        if not self.init_std > 0:
            problems.append(f"init_std: expected more than 0, got {self.init_std}")
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Files that training reads from one of its samples on."""

    at: int
    """Number of its first sample: the samples before it are ``train.global_batch`` for each step."""
    files: tuple[str, ...] = field(metadata={"remote": "objects"})
    """As ``data.files``. A file of earlier phases continues where it was."""

    def __post_init__(self) -> None:
        if problem := "expected at least one path" if not self.files else problem_of(split_weights(self.files)):
            raise ValueError(f"files: {problem}")


@dataclass(frozen=True, kw_only=True)
class GptIndexed:
    """Token files of Megatron (.bin and .idx); without files, the embedded corpus."""

    files: tuple[str, ...] = field(default=(), metadata={"remote": "objects"})
    """Paths without their ending, folders of token files, patterns (``data/*.bin``), or ``@LIST``: a file with such a
    path in each line. Addresses of object storage (``s3://bucket/data``) may stand for paths. Several are blended, by
    their sizes or each as ``weight:path``. Without files: the English text in CPython's library."""
    phases: tuple[Phase, ...] = ()
    """Other files, from a sample on: ``[{at: 100000, files: [data/wiki, data/books]}]``. A run takes new phases until
    it has read ``at`` samples. Validation stays with ``files``."""
    split: tuple[float, ...] = (969, 30, 1)
    """Shares of the documents for training, validation and test."""
    sequence: int = 256
    """Tokens in one sample."""
    order: Literal["fast", "megatron"] = "fast"
    """``megatron``: sample i equals sample i of megatron-core's GPTDataset."""
    document_mask: bool = False
    """Keep the documents of a sample apart: attention and positions restart at each, and the last token of one does not
    predict the first of the next. A document is a sequence of the .idx file."""
    rows: Literal["cut", "packed"] = "cut"
    """``cut``: the samples are cut from the stream of all documents. ``packed``: each is filled with whole documents by
    best fit, and padded; longer ones are cut to the length of a sample. It needs ``document_mask``."""
    tokenizer: str | None = None
    """A tokenizer.json, to show samples as text; by default the one next to the files, if any."""
    vocabulary: int = 8192
    """Entries of the tokenizer that is trained on the embedded corpus."""
    fetch_memory: int = 256
    """Most main memory of a process for tokens from object storage, in MB: those of the present step and of the next
    two, which are fetched in advance."""

    def __post_init__(self) -> None:
        problems = too_small(self, 1, "sequence", "fetch_memory")
        if not 1 <= len(self.split) <= 3 or not all(0 <= s < 1e9 for s in self.split) or not sum(self.split) > 0:
            problems.append(f"split: expected one to three shares, not all zero, got {list(self.split)}")
        if self.vocabulary < 257:
            problems.append(
                f"vocabulary: expected at least 257 (256 bytes and the end of a document), got {self.vocabulary}"
            )
        if self.rows == "packed" and not self.document_mask:
            problems.append("rows: packed rows keep their documents apart; set document_mask=true")
        if self.rows == "packed" and self.order == "megatron":
            problems.append("rows: order=megatron cuts rows as megatron-core does; take rows=cut, or order=fast")
        if problem := problem_of(split_weights(self.files)):
            problems.append(f"files: {problem}")
        problems += self._phase_problems()
        if problems:
            raise ValueError("\n".join(problems))

    def _phase_problems(self) -> Iterator[str]:
        begins = [0, *(phase.at for phase in self.phases)]
        if any(second <= first for first, second in pairwise(begins)):
            yield (
                f"phases: expected rising numbers above 0 for `at`, got {begins[1:]}; `files` are what training reads "
                "from sample 0 on"
            )
        if self.phases and self.order == "megatron":
            yield (
                "order: megatron shuffles all samples of a run at once, so that a phase would change earlier samples; "
                "set order=fast, or leave out phases"
            )


@dataclass(frozen=True, kw_only=True)
class GptPrepare(FilteredInput):
    """Text to token files of Megatron (.bin and .idx)."""

    output: str = ""
    """Folder to make."""
    overwrite: bool = False
    """Replace the folder ``output``, if it holds only an earlier data set and no input. It stays until the new one is
    complete."""
    tokenizer: str = TRAIN
    """A tokenizer.json; GPT-2's vocab.json and merges.txt (one of them, or their folder); BERT's vocab.txt; or
    ``train``, to train a byte-level BPE on the input."""
    vocab_size: int | None = None
    """Entries of the vocabulary that ``tokenizer=train`` makes; by default 8192, as in the default model."""
    train_characters: int = 200_000_000
    """Characters that ``tokenizer=train`` reads, spread over the whole input; bounds the memory."""
    empty_documents: Literal["keep", "drop"] = "keep"
    """JSON lines whose text is empty or white space. ``keep``, as Megatron-LM does: white space is tokenised, an empty
    text is a document without tokens. ``drop``: both are left out, as plain text and wiki pages without text are."""
    append_eod: bool = True
    """End each document that has tokens with the token ``eod``."""
    eod: str = "<|endoftext|>"
    """The token that ends a document; the vocabulary must have it."""
    add_special_tokens: bool = False
    """Add the tokenizer's special tokens to each text, such as [CLS] or <s>."""
    split_sentences: bool = False
    """Make each sentence a sequence; otherwise each document is one."""
    workers: int = 0
    """Processes; 0: one per core, and fewer for small inputs. At most one per core and per chunk of the input is
    started. The files do not depend on it."""
    engine: Literal["auto", "tokenizers", "gigatoken"] = "auto"
    """Library that tokenises. ``auto``: gigatoken, if it is installed and gives the same ids, else tokenizers."""

    @property
    def keeps_empty(self) -> bool:
        """True if JSON lines whose text is empty or white space are documents."""
        return self.empty_documents == "keep" and not self.filters

    @property
    def trained_size(self) -> int:
        """Entries of the vocabulary that ``tokenizer=train`` makes."""
        return Gpt.vocabulary if self.vocab_size is None else self.vocab_size

    def problems(self) -> list[str]:
        """Return the problems of the settings, those of the texts first."""
        problems = super().problems()
        if not self.output:
            problems.append("output: expected the path of the folder to make, got nothing")
        if not self.tokenizer:
            problems.append(
                "tokenizer: expected a tokenizer.json, GPT-2's vocab.json, BERT's vocab.txt, or `train`, got nothing"
            )
        if self.tokenizer != TRAIN and self.vocab_size is not None:
            problems.append("vocab_size: only tokenizer=train takes it; other tokenizers have theirs")
        if self.vocab_size is not None and self.vocab_size < 257:
            problems.append(
                f"vocab_size: expected at least 257 (256 bytes and the end of a document), got {self.vocab_size}"
            )
        problems += too_small(self, 1, "train_characters")
        if self.append_eod and not self.eod:
            problems.append("eod: expected a token, got nothing; set append_eod=false to add none")
        if not 0 <= self.workers <= 4096:
            problems.append(f"workers: expected 0 to 4096, got {self.workers}")
        return problems


@dataclass(frozen=True, kw_only=True)
class MegatronSettings:
    """A folder for Megatron-LM."""

    tp: int = 1
    """Tensor-parallel ranks for which it is written."""
    pp: int = 1
    """Pipeline stages for which it is written."""
    names: Literal["core", "legacy"] = "core"
    """Names of the tensors: megatron-core's, or the older ones (``--use-legacy-models``). Both can be read."""
    vocabulary_multiple: int = 128
    """Pad the rows of the vocabulary with zeros to a multiple of this times ``tp``, as Megatron expects
    (``--make-vocab-size-divisible-by``); 1: no padding. Reading removes the padding if the model's
    vocabulary is known."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "tp", "pp", "vocabulary_multiple"):
            raise ValueError("\n".join(problems))
