"""Sizes of models, datasets and optimizers, known before they are built. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Sizes of a model that follow from its settings; all counts are for one sample of the requested length.

    "Values" are tensor elements, not bytes.
    """

    parameters: int
    """Trainable parameters, tied ones once."""
    flops_per_sample: float
    """Floating-point operations of forward and backward, without recomputation."""
    attention_flops: float = 0.0
    """Of these, the products of queries with keys and of probabilities with values, which grow with the square of the
    sequence; documents that are masked from each other (:attr:`DataFacts.attended_pairs`) need fewer. 0: not known."""
    activation_values: int
    """Values that forward saves for backward."""
    recomputed_activation_values: int
    """The same under activation checkpointing: the inputs of the blocks, and the activations of one block."""
    logits_values: int
    """Values of the largest logits-like tensor that exists at once for one sample."""
    max_sequence: int | None = None
    """Longest sequence that the model takes, if it has a limit."""
    vocabulary: int | None = None
    """Token ids must be below this."""
    blocks: int = 0
    """Number of blocks; 0: none. A pipeline cuts between them, and a fully sharded layout gathers one at a time."""
    block_parameters: int = 0
    """Parameters of one block, the largest where they differ."""
    divisible: Mapping[str, int] = field(default_factory=dict)
    """Sizes that tensor parallelism cuts, by setting (``{"model.heads": 12}``): the degree must divide them. The
    vocabulary is not among them: its shards may differ by some rows, unless data-parallel ranks divide them further."""
    divided_parameters: int = 0
    """Of ``parameters``, those that tensor parallelism cuts."""
    frozen_parameters: int = 0
    """Further parameters, for which there are no gradients and no optimizer states."""
    frozen_block_parameters: int = 0
    """Of these, those of one block."""
    frozen_divided_parameters: int = 0
    """Of these, those that tensor parallelism cuts."""
    divided_activation_values: int = 0
    """Of ``activation_values``, those that it cuts; sequence parallelism cuts the others."""
    divided_recomputed_values: int = 0
    """The same of ``recomputed_activation_values``."""
    stream_values: int = 0
    """Values that pass from one block to the next."""
    mixed_activation_values: int = 0
    """Additional 16-bit values under ``bf16_mixed``, beyond one for each of ``activation_values``: values that stay in
    fp32 (the residual stream, and the inputs of norms) count once more, and so does each copy that autocast makes
    where several layers read the same tensor. Tensor parallelism cuts none of them, sequence parallelism all."""
    mixed_recomputed_values: int = 0
    """The same, beyond ``recomputed_activation_values``."""
    dropout_values: int = 0
    """Of ``activation_values``, the masks of dropout: numbers on a CPU, a byte each on CUDA."""
    dropout_recomputed_values: int = 0
    """The same of ``recomputed_activation_values``."""
    dropout_mixed_values: int = 0
    """The same of ``mixed_activation_values``: once more for each mask that a CPU keeps in fp32 there."""
    dropout_mixed_recomputed_values: int = 0
    """The same of ``mixed_recomputed_values``."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Sizes of a dataset that follow from its settings and the headers of its files, without reading the samples."""

    sequence: int
    """Tokens in one sample, padding included."""
    vocabulary: int | None = None
    """Token ids are below this, as far as it is known beforehand."""
    train_samples: int | None = None
    """Different training samples, as far as it is known beforehand."""
    valid_samples: int | None = None
    """Different validation samples, likewise."""
    phases: tuple[int, ...] = ()
    """Training samples with which another mixture of data begins, in rising order."""
    document_mask: bool = False
    """Samples hold several documents, numbered by the tensor ``document_ids``, which the model must keep apart
    (:attr:`Model.document_mask`)."""
    attended_pairs: float = 1.0
    """Share of the pairs of tokens of a sample that are of one document, where ``document_mask`` is True."""
    problems: tuple[str, ...] = ()
    """Everything wrong with the files, one message each."""


@dataclass(frozen=True, kw_only=True)
class DataIdentity:
    """Digests that distinguish the data of a run from other data at the same path, found in milliseconds."""

    content: str = ""
    """Digest of the sizes of the files and of samples of their bytes, see
    :func:`recipe_core.data.identity.content_digest`. Empty: not known."""
    manifest: str = ""
    """Digest of the SHA-256 sums that manifests list for the files. Empty: at least one file has none."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """Settings that decide, besides seed and batch, which sample has which number; plain data."""
    conflicts: tuple[str, ...] = ()
    """Contradictions within the data, one sentence each: files that were encoded by different tokenizers, say."""
    phases: Mapping[int, DataIdentity] = field(default_factory=dict)
    """Data that training reads from a sample on, by the number of that sample. A run that has not read it yet may
    continue with other phases; the rest of the identity is of the data before the first one."""


@dataclass(frozen=True, kw_only=True)
class IndexFacts:
    """Needs of one machine for the indices of a dataset's files in one run; those that its cache has need nothing."""

    memory: int = 0
    """Bytes of main memory while one process builds them, and of the small ones that every process keeps."""
    disk: int = 0
    """Bytes of the files that are written into the cache."""
    files: int = 0
    """Data files that the run reads."""
    maps: int = 0
    """Memory maps that each process holds while it reads."""
    advice: str = ""
    """A way to need less, which ends a sentence: ``set data.order=fast``."""
    problems: tuple[str, ...] = ()
    """Limits of the indices themselves that the run passes, one message each."""


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """Memory of an optimizer, as a mean over the parameters of the model."""

    bytes_per_parameter: float
    """State kept from step to step, which checkpoints hold: moments, wider copies of weights."""
