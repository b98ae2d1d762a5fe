"""Facts about ``gpt_indexed`` from its settings and the headers of its files, without torch or numpy."""

from __future__ import annotations

from recipe_core import DataError, DataFacts
from recipe_core.checkpoint.inference.tokenizer import read_tokenizer
from recipe_megatron_gpt.data.arrays.lengths import attended_pairs, samples_of
from recipe_megatron_gpt.data.header import Header, bin_path, read_header
from recipe_megatron_gpt.data.sources import PhaseFiles, distinct, phases_of, split_ranges
from recipe_megatron_gpt.settings import GptIndexed
from recipe_megatron_gpt.tokenizer.text import tokenizer_file


def facts(config: GptIndexed) -> DataFacts:
    """Facts from the headers of all files, with the problems of every file; does not build the embedded corpus."""
    problems: list[str] = []
    phases: list[PhaseFiles] = []
    try:
        phases = phases_of(config)
    except DataError as error:
        problems += str(error).splitlines()
    first = {source.key for source in phases[0].sources} if phases else set()
    samples = valid_samples = 0
    shares: list[tuple[float, float]] = []
    for key, source in distinct(phases).items():
        try:
            header = read_header(source.prefix)
            parts = split_ranges(header.sequences, config.split)
            train, valid = header.tokens(parts["train"], parts["valid"])
            samples += _train_samples(header, len(parts["train"]), train, config.sequence)
            valid_samples += samples_of(valid, config.sequence) if key in first else 0
            if config.document_mask:
                sizes = header.some_sizes(parts["train"])
                share = attended_pairs(sizes, config.sequence, packed=config.rows == "packed")
                shares.append((source.weight or float(train), share))
        except DataError as error:
            problems.append(str(error))
    vocabulary = None if config.files else config.vocabulary
    try:
        path = tokenizer_file(config) if phases else None
        if path is not None:
            vocabulary = max(read_tokenizer(path).get_vocab().values()) + 1
    except DataError as error:
        problems.append(str(error))
    return DataFacts(
        sequence=config.sequence,
        vocabulary=vocabulary,
        train_samples=None if config.rows == "packed" or not config.files else samples or None,  # packing needs sizes
        valid_samples=None if config.rows == "packed" else valid_samples or None,
        phases=tuple(phase.at for phase in config.phases),
        document_mask=config.document_mask,
        attended_pairs=sum(weight * share for weight, share in shares) / sum(w for w, _ in shares) if shares else 1.0,
        problems=tuple(problems),
    )


def _train_samples(header: Header, sequences: int, tokens: int, length: int) -> int:
    # samples of one epoch over the training part of a file; at least 1, since a shorter part is repeated
    if tokens < 1:
        raise DataError(
            f"{bin_path(header.prefix)}: the split 'train' gets {sequences} of its {header.sequences} sequences and "
            "no token; give it a larger share in data.split, or more data"
        )
    return max(1, samples_of(tokens, length))
