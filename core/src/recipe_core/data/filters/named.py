"""The filters that have a name: those of datatrove that judge one document by its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_FILTERS, _FORMATTERS = "datatrove.pipeline.filters", "datatrove.pipeline.formatters"
_WORDS = ("datatrove", "spacy")
_FASTTEXT = ("datatrove", "fasttext-numpy2-wheel")


@dataclass(frozen=True)
class NamedFilter:
    """A filter of datatrove."""

    target: str
    """``module:Class``."""
    packages: tuple[str, ...] = ("datatrove",)
    """Distributions whose versions decide the result."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Options of ours that name a file or folder to read, and its description. datatrove would download these."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Further options of ours, with their defaults."""
    hidden: frozenset[str] = frozenset()
    """Options of the class that do not apply here: what is random, writes files, or is replaced by ``files``."""


NAMED: dict[str, NamedFilter] = {
    "gopher_quality": NamedFilter(f"{_FILTERS}:GopherQualityFilter", _WORDS),
    "gopher_repetition": NamedFilter(f"{_FILTERS}:GopherRepetitionFilter", _WORDS),
    "fineweb_quality": NamedFilter(f"{_FILTERS}:FineWebQualityFilter", _WORDS),
    "c4_quality": NamedFilter(f"{_FILTERS}:C4QualityFilter", _WORDS),
    "c4_paragraphs": NamedFilter(f"{_FILTERS}:C4ParagraphFilter"),
    "c4_bad_words": NamedFilter(
        f"{_FILTERS}:C4BadWordsFilter",
        files={"words": "a text file with a word or phrase in each line"},
        hidden=frozenset({"keep_fraction", "seed", "fail_on_missing_language"}),
    ),
    "language": NamedFilter(
        f"{_FILTERS}:LanguageFilter",
        _FASTTEXT,
        files={"model": "a fastText model for languages, such as lid.176.bin"},
        hidden=frozenset({"label_only", "keep_top_pairs_threshold"}),
    ),
    "fasttext": NamedFilter(
        f"{_FILTERS}:FastTextClassifierFilter",
        _FASTTEXT,
        files={"model": "a fastText classifier"},
        hidden=frozenset({"model_url", "save_labels_in_metadata"}),
    ),
    "unigram": NamedFilter(
        f"{_FILTERS}:UnigramLogProbFilter",
        _WORDS,
        files={"frequencies": "a file named unigram_freq.csv with the columns word and count"},
    ),
    "regex": NamedFilter(f"{_FILTERS}:RegexFilter"),
    "decontamination": NamedFilter(
        "datatrove.pipeline.decont:NGramsDecontFilter",
        _WORDS,
        files={"index": "a folder with the files *.index.hashes of datatrove's NGramsDecontIndexer"},
        more={"n_grams": 12},
        hidden=frozenset({"index_folder", "config"}),
    ),
    "pii": NamedFilter(f"{_FORMATTERS}:PIIFormatter"),
    "ftfy": NamedFilter(f"{_FORMATTERS}:FTFYFormatter", ("datatrove", "ftfy")),
    "symbol_lines": NamedFilter(f"{_FORMATTERS}:SymbolLinesFormatter"),
}

HIDDEN = frozenset({"self", "exclusion_writer", "batch_size"})
"""Options that no filter takes here."""

_DUPLICATES = (
    "duplicates are found among all documents, and a filter sees one at a time; remove them before, by datatrove's "
    "pipelines, whose JSON lines `inputs` takes (docs/how-to/prepare-data.md shows one)"
)
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        ("dedup", "deduplication", "exact_dedup", "minhash", "minhash_dedup", "sentence_dedup", "bloom_filter"),
        _DUPLICATES,
    ),
    "url": "`inputs` are read without the addresses of documents; filter by them before, by datatrove's pipelines",
    "sampler": "it draws at random, so parts would differ from one process; take fewer inputs",
    "lambda": "name the function itself, as module:function",
}
"""Filters of datatrove that are not available here, with the reason."""
