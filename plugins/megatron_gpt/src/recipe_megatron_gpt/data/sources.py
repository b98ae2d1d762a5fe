"""Token files of a run, their weights and phases, and the sequences of each split. No torch here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from recipe_core import DataError
from recipe_core.files.named import NamedPath, matches, problem_of, read_lists, split_weights
from recipe_core.files.objects import ObjectPath
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.header import Place, read_header
from recipe_megatron_gpt.data.remote import places
from recipe_megatron_gpt.settings import GptIndexed

SPLITS = ("train", "valid", "test")
ENDINGS = (".bin", ".idx")
_SHOWN = 20
"""Problems that a message lists; further ones are counted."""


@dataclass(frozen=True)
class TokenFiles:
    """One pair of token files."""

    prefix: Place
    """Path or address without its ending."""
    weight: float | None
    """Share of the samples, relative to the other sources; None: proportional to the size."""

    @property
    def key(self) -> str:
        """One text for all spellings of the prefix."""
        if isinstance(self.prefix, ObjectPath):
            return str(self.prefix)
        return os.path.abspath(self.prefix)  # noqa: PTH100  # Path.absolute() keeps `..`


def parse(files: Sequence[str], setting: str = "data.files") -> list[TokenFiles]:
    """Find the token files that a setting names, in its order; those of a folder or pattern in order of names.

    The weight of a folder or pattern is divided among its files in proportion to their tokens.

    Raises:
        DataError: a list file cannot be read or names missing files, a pattern matches nothing, files are named twice,
            or only some have a weight; one message for all problems.
    """
    named = read_lists(split_weights(files), objects=True)
    if problem := problem_of(named):
        raise DataError(f"{setting}: {problem}")
    sources: list[TokenFiles] = []
    named_by: dict[str, NamedPath] = {}
    problems: list[str] = []
    for one in named:
        try:
            prefixes = _prefixes(one)
            found = list(map(TokenFiles, prefixes, _divided(one.weight, prefixes)))
        except DataError as error:
            problems.append(str(error))
            continue
        for source in found:
            first = named_by.setdefault(source.key, one)
            if first is not one:
                problems.append(f"{source.prefix}: named by {str(first)!r} and by {str(one)!r}; name it once")
        sources += found
    if len(problems) > _SHOWN:
        problems[_SHOWN:] = [f"{setting}: {len(problems) - _SHOWN:,} more problems of this kind"]
    if problems:
        raise DataError("\n".join(problems))
    return sources


def _prefixes(named: NamedPath) -> Sequence[Place]:
    if (address := named.address) is not None:
        found = places.matching(address) if named.is_pattern else places.prefixes_of(address)
        if not found:
            raise DataError(f"{named}: no token files (.bin and .idx) match this pattern")
        return found
    path = named.path
    if path.is_dir():
        prefixes, missing = _prefixes_in(path), "there are no token files (.bin and .idx) in this folder; name another"
    elif named.is_pattern and not _exists(path):
        prefixes, missing = _matching(path), "no token files (.bin and .idx) match this pattern"
    elif named.origin and not _exists(path):  # others are reported when they are opened
        prefixes, missing = [], "there are no such token files (.bin and .idx)"
    else:
        return [_without_ending(path)]
    if not prefixes:
        raise DataError(f"{named}: {missing}{'' if path.is_absolute() else f' (looked for from {Path.cwd()})'}")
    return prefixes


def _matching(pattern: Path) -> list[Path]:
    found = matches(pattern)
    if pattern.name == "**":  # all folders, and not each of them has token files
        return sorted({prefix for path in found if path.is_dir() for prefix in _prefixes_in(path)})
    # Any other pattern may be of files, of folders, or of paths without their ending.
    if pattern.suffix not in ENDINGS:
        found += matches(pattern.with_name(f"{pattern.name}.idx"))
    prefixes = [
        prefix
        for path in found
        for prefix in (_prefixes_in(path) or [path] if path.is_dir() else [_without_ending(path)])
        if path.is_dir() or path.suffix in ENDINGS
    ]
    return sorted(set(prefixes))


def _prefixes_in(folder: Path) -> list[Path]:
    # A .bin file without an .idx file is one that was not written to its end, unless there is no pair at all.
    paths = sorted(folder.glob("*.idx")) or sorted(folder.glob("*.bin"))
    return [path.with_suffix("") for path in paths if not path.name.startswith(".")]


def _exists(path: Path) -> bool:
    prefix = _without_ending(path)
    return any(prefix.with_name(f"{prefix.name}{ending}").exists() for ending in ENDINGS)


def _without_ending(path: Path) -> Path:
    # Completion in a shell gives one of the two files.
    return path.with_suffix("") if path.suffix in ENDINGS else path


def _divided(weight: float | None, prefixes: Sequence[Place]) -> list[float | None]:
    if weight is None or len(prefixes) == 1:
        return [weight] * len(prefixes)
    headers = [read_header(prefix) for prefix in prefixes]
    tokens = [header.bin_bytes // header.width for header in headers]
    return [weight * count / max(1, sum(tokens)) for count in tokens]


@dataclass(frozen=True)
class PhaseFiles:
    """Token files that training reads together, from a sample on."""

    at: int
    """Number of the first sample that is drawn from them."""
    sources: list[TokenFiles]


def phases_of(config: GptIndexed, cache: Path | None = None) -> list[PhaseFiles]:
    """The files of training: those of ``files`` from sample 0 on, and those of ``phases``.

    Args:
        config: the settings.
        cache: folder for the embedded corpus, which is prepared if there are no files; None: it is left out.

    Raises:
        DataError: files cannot be found; one message for all.
        DiskError: the embedded corpus cannot be written.
    """
    phases, problems = [], []
    for number, (at, files) in enumerate([(0, config.files), *((phase.at, phase.files) for phase in config.phases)]):
        try:
            phases.append(PhaseFiles(at, parse(files, f"data.phases[{number - 1}].files" if number else "data.files")))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    if not config.files and cache is not None:
        phases[0].sources.append(_embedded(config, cache))
    return phases


def validation_sources(config: GptIndexed, cache: Path) -> list[TokenFiles]:
    """The files of validation, in all phases: those of ``files``, or the embedded corpus in ``cache``.

    Raises:
        DataError: files cannot be found.
        DiskError: the embedded corpus cannot be written.
    """
    return parse(config.files) or [_embedded(config, cache)]


def _embedded(config: GptIndexed, cache: Path) -> TokenFiles:
    return TokenFiles(corpus.prepare(cache, config.vocabulary), None)


def distinct(phases: Sequence[PhaseFiles]) -> dict[str, TokenFiles]:
    """The files of all phases, each once, by their keys, in order of their first samples."""
    files: dict[str, TokenFiles] = {}
    for source in (source for phase in phases for source in phase.sources):
        files.setdefault(source.key, source)
    return files


def prefixes_of(path: Place) -> Sequence[Place]:
    """The prefixes of the token files at ``path``: a prefix, one of the two files, or a folder with pairs.

    For a folder with half a pair it is that half's prefix, so that opening it reports the missing file.
    """
    if isinstance(path, ObjectPath):
        return places.prefixes_of(path)
    return _prefixes_in(path) or [path] if path.is_dir() else [_without_ending(path)]


def prefix_of(path: Path) -> Place:
    """As :func:`prefixes_of`, of one pair.

    Raises:
        ValueError: the folder has several pairs.
    """
    prefixes = prefixes_of(path)
    if len(prefixes) > 1:
        names = ", ".join(prefix.name for prefix in prefixes[:5])
        raise ValueError(f"files: {path} holds {len(prefixes)} pairs of token files ({names}); name them one by one")
    return prefixes[0]


def split_ranges(sequences: int, shares: Sequence[float]) -> dict[str, range]:
    """The ranges of ``sequences`` for ``"train"``, ``"valid"`` and ``"test"``.

    The boundaries are those of megatron-core 0.16 (``BlendedMegatronDatasetConfig.split_matrix``): cumulative sums of
    the normalised shares, times the count, rounded half to even. The unit is the sequence, which for GPT is usually a
    document.
    """
    total = sum(shares)
    cuts = [round(end * sequences) for end in accumulate((share / total for share in shares), initial=0.0)]
    ranges = [range(first, last) for first, last in pairwise(cuts)]
    ranges += [range(0)] * (len(SPLITS) - len(ranges))
    return dict(zip(SPLITS, ranges, strict=True))
