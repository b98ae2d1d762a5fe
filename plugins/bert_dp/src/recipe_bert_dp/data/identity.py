"""Identity of the data, to compare when a run resumes. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe_bert_dp.data import corpus, shards
from recipe_bert_dp.settings import BertHdf5
from recipe_core import DataIdentity
from recipe_core.data.identity import content_digest, identity_of_files
from recipe_core.files import home


def identity(config: BertHdf5) -> DataIdentity:
    """Digests of the training shards, and the settings that determine their order; see :class:`DataIdentity`.

    Raises:
        DataError: a file is missing, or its size differs from the manifest.
    """
    files = [
        path for path in shards.find(corpus.with_files(config, home()).files) if shards.kind_of(path) == "training"
    ]
    order = {"sequence": config.sequence, "max_predictions": config.max_predictions}
    return identity_of_files(files, order, _conflicts(files))


def _conflicts(files: Sequence[Path]) -> Iterator[str]:
    # With different vocabularies, the same id means different words.
    folders = dict.fromkeys(path.parent for path in files)
    vocabularies = dict.fromkeys(filter(None, (shards.vocabulary_of([folder / "shard"]) for folder in folders)))
    digests = {path: content_digest([path]) for path in vocabularies}
    first = next(iter(digests), None)
    for path, digest in digests.items():
        if first is not None and digest != digests[first]:
            yield f"{first} and {path}, the vocabularies of the shards, differ ({digests[first]:.12}, {digest:.12})"
