"""The identity of token files, for comparison when a run continues. No torch here."""

from __future__ import annotations

from pathlib import Path

from recipe_core import DataError, DataIdentity
from recipe_core.data.identity import identity_of_files, tokenizer_digest
from recipe_core.files import home
from recipe_core.files.documents import read_text
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.header import bin_path, idx_path, read_header
from recipe_megatron_gpt.data.sources import TokenFiles, parse
from recipe_megatron_gpt.settings import GptIndexed


def identity(config: GptIndexed) -> DataIdentity:
    """Digests of the token files, and the settings that decide the order of samples; see :class:`DataIdentity`.

    Raises:
        DataError: a file is missing, or has another size than its manifest lists.
    """
    sources = parse(config.files) or [TokenFiles(corpus.prepare(home(), config.vocabulary), None)]
    files = [path(source.prefix) for source in sources for path in (bin_path, idx_path)]
    order = {"sequence": config.sequence, "split": config.split, "order": config.order}
    if any(source.weight is not None for source in sources):
        order["weights"] = [source.weight for source in sources]
    try:
        return identity_of_files(files, order, _conflicts(sources))
    except DataError:
        for source in sources:
            read_header(source.prefix)  # its error says more about a missing file
        raise


def _conflicts(sources: list[TokenFiles]) -> list[str]:
    # files of a blend that were encoded by different tokenizers, so that an id means different texts
    paths = {source.prefix: source.prefix.with_name(corpus.TOKENIZER) for source in sources}
    tokenizers = {prefix: path for prefix, path in paths.items() if path.is_file()}
    digests = {path: _digest(path) for path in dict.fromkeys(tokenizers.values())}
    first = next(iter(tokenizers), None)
    if first is None:
        return []
    expected = digests[tokenizers[first]]
    return [
        f"{first} and {prefix} were encoded by different tokenizers ({expected:.12}, {digests[path]:.12})"
        for prefix, path in tokenizers.items()
        if digests[path] != expected
    ]


def _digest(path: Path) -> str:
    return tokenizer_digest({corpus.TOKENIZER: read_text(path)})
