"""Settings of the model, the data and the preparation, in this order. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recipe_core import too_small
from recipe_core.data.text_settings import TextInput
from recipe_megatron_gpt.data.sources import parse

TRAIN = "train"
"""As ``tokenizer``: make one from the input."""


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """A decoder-only transformer as Megatron-LM trains it."""

    layers: int = 4
    """Transformer blocks, each attention and an MLP."""
    hidden: int = 256
    """Width of the residual stream; the MLP is four times as wide."""
    heads: int = 4
    """Attention heads; ``hidden`` divides by them."""
    positions: int = 256
    """Longest sequence: rows of the learned position embedding."""
    vocabulary: int = 8192
    """Rows of the token embedding; pad it to a multiple of 128 for speed."""
    dropout: float = 0.1
    """After the embeddings, the attention and the MLP."""
    attention_dropout: float = 0.1
    """On the attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; for matrices that write into the residual stream it
    is divided by the root of twice the layers."""

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
class GptIndexed:
    """Token files of Megatron (.bin and .idx), or the embedded corpus where no file is named."""

    files: tuple[str, ...] = ()
    """Paths without their ending, or folders that ``recipe prepare gpt_indexed`` made; several are blended, by their
    sizes or each as ``weight:path``. None: the English text that CPython carries."""
    split: tuple[float, ...] = (969, 30, 1)
    """Shares of the documents for training, validation and test."""
    sequence: int = 256
    """Tokens in one sample."""
    order: Literal["fast", "megatron"] = "fast"
    """``megatron``: sample i equals sample i of megatron-core's GPTDataset."""
    tokenizer: str | None = None
    """A tokenizer.json, for reading samples as text; unless given, the one that lies beside the files, if any."""
    vocabulary: int = 8192
    """Entries of the tokenizer that is trained for the embedded corpus."""

    def __post_init__(self) -> None:
        problems = too_small(self, 1, "sequence")
        if not 1 <= len(self.split) <= 3 or not all(0 <= s < 1e9 for s in self.split) or not sum(self.split) > 0:
            problems.append(f"split: expected one to three shares, not all zero, got {list(self.split)}")
        if self.vocabulary < 257:
            problems.append(
                f"vocabulary: expected at least 257 (256 bytes and the end of a document), got {self.vocabulary}"
            )
        try:
            parse(self.files)
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class GptPrepare(TextInput):
    """Text to token files of Megatron (.bin and .idx)."""

    output: str = ""
    """Folder to make."""
    overwrite: bool = False
    """Replace the folder ``output``, if it is an earlier data set with nothing else in it, and no input. It stays until
    the new one is complete."""
    tokenizer: str = TRAIN
    """A tokenizer.json; GPT-2's vocab.json and merges.txt (one of them, or their folder); BERT's vocab.txt; or
    ``train``, to train a byte-level BPE on the input."""
    vocab_size: int | None = None
    """Entries of the vocabulary that ``tokenizer=train`` makes: 8192 unless given, which is what the default model
    has room for."""
    train_characters: int = 200_000_000
    """Characters of the input, spread over all of it, that ``tokenizer=train`` reads; it bounds the memory."""
    empty_documents: Literal["keep", "drop"] = "keep"
    """JSON lines whose text is empty or white space. ``keep``, as Megatron-LM does: white space is tokenized, an empty
    text is a document without tokens. ``drop``: both are left out, as plain text and wiki pages without text are."""
    append_eod: bool = True
    """End each document that has any token with the token ``eod``."""
    eod: str = "<|endoftext|>"
    """The token that ends a document; the vocabulary must have it."""
    add_special_tokens: bool = False
    """Have the tokenizer add what it adds to a text by itself, such as [CLS] or <s>."""
    split_sentences: bool = False
    """Make each sentence a sequence of its own; otherwise each document is one."""
    workers: int = 0
    """Processes; 0 takes one per core, and fewer where the input is small. More than there are cores, or chunks of the
    input, are not started. The files do not depend on it."""
    engine: Literal["auto", "tokenizers", "gigatoken"] = "auto"
    """``auto``: gigatoken, if it is installed and gives the same ids, else tokenizers."""

    @property
    def keeps_empty(self) -> bool:
        """True where a JSON line whose text is empty or white space is a document, too."""
        return self.empty_documents == "keep"

    @property
    def trained_size(self) -> int:
        """Entries of the vocabulary that is trained."""
        return Gpt.vocabulary if self.vocab_size is None else self.vocab_size

    def __post_init__(self) -> None:
        problems = []
        try:
            super().__post_init__()
        except ValueError as error:
            problems.append(str(error))
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
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class MegatronSettings:
    """A folder for Megatron-LM."""

    tp: int = 1
    """Tensor-parallel ranks that it is written for."""
    pp: int = 1
    """Pipeline stages that it is written for."""
    names: Literal["core", "legacy"] = "core"
    """Names of the tensors: megatron-core's, or those of before it (``--use-legacy-models``). Both are read."""
    vocabulary_multiple: int = 128
    """The rows of the vocabulary are padded with zeros to a multiple of this times ``tp``, as Megatron expects it
    (``--make-vocab-size-divisible-by``); 1: not at all. Padding is taken off again where the model's size is known."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "tp", "pp", "vocabulary_multiple"):
            raise ValueError("\n".join(problems))
