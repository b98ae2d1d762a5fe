"""Token files of a run, their weights, and the sequences of each split. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class TokenFiles:
    """One pair of token files."""

    prefix: Path
    """Path without its ending."""
    weight: float | None
    """Share of the samples, relative to the other sources; None: proportional to the size."""


def parse(files: Sequence[str]) -> list[TokenFiles]:
    """Read the setting ``files``: ``path`` or ``weight:path`` each.

    Raises:
        ValueError: a weight is not positive, or only some of the files have one.
    """
    sources = [_parse_one(text) for text in files]
    if any(s.weight is not None and not 0 < s.weight < float("inf") for s in sources):
        raise ValueError(f"files: expected weights above 0, got {list(files)}")
    if len({s.weight is None for s in sources}) > 1:
        raise ValueError(
            f"files: some have a weight and some have none, got {list(files)}; write weight:path for all or for none"
        )
    return sources


def _parse_one(text: str) -> TokenFiles:
    head, colon, tail = text.partition(":")
    weight: float | None = None
    if colon:
        try:
            weight = float(head)
        except ValueError:  # the colon belongs to the path
            tail = text
    else:
        tail = text
    return TokenFiles(prefix_of(Path(tail).expanduser()), weight)


def prefix_of(path: Path) -> Path:
    """The prefix of the pair of token files at ``path``: a prefix, one of the two files, or a folder with one pair.

    For a folder with half a pair it is that half's prefix, so that opening it reports the missing file.

    Raises:
        ValueError: the folder has several pairs.
    """
    if path.is_dir():
        pairs = sorted(path.glob("*.idx")) or sorted(path.glob("*.bin"))
        if len(pairs) > 1:
            names = ", ".join(pair.stem for pair in pairs[:5])
            raise ValueError(f"files: {path} holds {len(pairs)} pairs of token files ({names}); name them one by one")
        return pairs[0].with_suffix("") if pairs else path
    # Completion in a shell gives one of the two files.
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


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
