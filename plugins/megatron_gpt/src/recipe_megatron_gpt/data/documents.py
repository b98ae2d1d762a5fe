"""The documents of ``gpt_indexed`` as token ids, for ``recipe eval``."""

from __future__ import annotations

from pathlib import Path

from recipe_core import ConfigError, TokenDocuments
from recipe_core.files import home
from recipe_core.files.documents import read_text
from recipe_core.files.objects.copies import local_file
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.header import idx_path
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.sources import prefix_of, split_ranges, validation_sources
from recipe_megatron_gpt.settings import GptIndexed


def documents(config: GptIndexed, path: Path | None) -> TokenDocuments | None:
    """See :attr:`recipe_core.Dataset.documents`.

    Raises:
        ConfigError: the folder ``path`` has several pairs of token files.
        DataError: a file is missing or damaged.
    """
    if path is not None:
        return _prepared(config, path)
    files = [IndexedFile.open(source.prefix) for source in validation_sources(config, home())]
    ranges = [split_ranges(file.sizes.size, config.split)["valid"] for file in files]
    return TokenDocuments(
        ids=[file.sequence(number) for file, numbers in zip(files, ranges, strict=True) for number in numbers],
        document_mask=config.document_mask,
    )


def _prepared(config: GptIndexed, path: Path) -> TokenDocuments | None:
    try:
        prefix = prefix_of(path)
    except ValueError as error:
        raise ConfigError(f"--data: {str(error).removeprefix('files: ')}") from error
    if local_file(idx_path(prefix)) is None and not path.is_dir():
        return None
    tokenizer = local_file(prefix.with_name(corpus.TOKENIZER))
    texts = {} if tokenizer is None else {corpus.TOKENIZER: read_text(tokenizer)}
    file = IndexedFile.open(prefix)
    return TokenDocuments(
        ids=[file.sequence(number) for number in range(file.sizes.size)],
        tokenizer=texts,
        document_mask=config.document_mask,
    )
