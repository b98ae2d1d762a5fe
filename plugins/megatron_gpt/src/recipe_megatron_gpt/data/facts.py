"""Facts about ``gpt_indexed`` from its settings and the headers of its files, without torch or numpy."""

from __future__ import annotations

from recipe_core import DataError, DataFacts
from recipe_megatron_gpt.data.header import Header, bin_path, read_header
from recipe_megatron_gpt.data.lengths import samples_of
from recipe_megatron_gpt.data.sources import parse, split_ranges
from recipe_megatron_gpt.settings import GptIndexed
from recipe_megatron_gpt.tokenizer.text import tokenizer_file
from recipe_megatron_gpt.tokenizer.vocabulary import read_tokenizer


def facts(config: GptIndexed) -> DataFacts:
    """Facts from the headers of all files, with the problems of every file; does not build the embedded corpus."""
    problems: list[str] = []
    samples = valid_samples = 0
    for source in parse(config.files):
        try:
            header = read_header(source.prefix)
            parts = split_ranges(header.sequences, config.split)
            train, valid = header.tokens(parts["train"], parts["valid"])
            samples += _train_samples(header, len(parts["train"]), train, config.sequence)
            valid_samples += samples_of(valid, config.sequence)
        except DataError as error:
            problems.append(str(error))
    vocabulary = None if config.files else config.vocabulary
    try:
        path = tokenizer_file(config)
        if path is not None:
            vocabulary = max(read_tokenizer(path).get_vocab().values()) + 1
    except DataError as error:
        problems.append(str(error))
    return DataFacts(
        sequence=config.sequence,
        vocabulary=vocabulary,
        train_samples=samples or None,
        valid_samples=valid_samples or None,
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
