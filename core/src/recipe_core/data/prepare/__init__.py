"""Building blocks of every ``recipe prepare``. No torch.

``output.py``: the output folder, which gets its final name when complete; read it first. ``stored.py``: an output in
object storage, which is copied from such a folder. ``pool.py``: an ordered map over worker processes. ``progress.py``:
the progress bar. ``inputs.py``, ``manifest.py``: entries of ``manifest.json`` for inputs and files. ``part.py``,
``parts.py``, ``part_files.py``: a preparation that is divided. ``executors/``: its parts in other processes.
:class:`DataFiles` and :class:`Inspection`, below: a plugin's ``recipe inspect`` and ``recipe verify``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recipe_core.data.prepare.executors.task import run_part
from recipe_core.data.prepare.inputs import hashed, hashed_part, input_facts, sha256
from recipe_core.data.prepare.manifest import file_facts, file_problems, read_manifest, without_hashes
from recipe_core.data.prepare.output import Output, writing
from recipe_core.data.prepare.part import PreparePart
from recipe_core.data.prepare.parts import PreparedPart, Section, join_files, merged_counts, merged_inputs
from recipe_core.data.prepare.pool import WorkerDiedError, fitting, ordered_map, working_on
from recipe_core.data.prepare.progress import ProgressBar

__all__ = [
    "DataFiles",
    "Inspection",
    "Output",
    "PreparePart",
    "PreparedPart",
    "Progress",
    "ProgressBar",
    "Section",
    "WorkerDiedError",
    "file_facts",
    "file_problems",
    "fitting",
    "hashed",
    "hashed_part",
    "input_facts",
    "join_files",
    "merged_counts",
    "merged_inputs",
    "ordered_map",
    "read_manifest",
    "run_part",
    "sha256",
    "without_hashes",
    "working_on",
    "writing",
]

Progress = ProgressBar  # its name until API 2


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Facts, lengths and an example of a data set, for ``recipe inspect``."""

    kind: str
    """Kind of data set, such as ``Megatron token files``."""
    facts: tuple[tuple[str, str], ...]
    """Rows of a table: samples, tokens, share of padding, ..."""
    lengths: tuple[tuple[str, int], ...] = ()
    """Histogram of the lengths: range and count."""
    example: str | None = None
    """A decoded sample; None without a tokenizer."""


class DataFiles(Protocol):
    """The files of one kind of data set."""

    def detect(self, path: Path) -> bool:
        """True if ``path`` (a file, a folder, or a path without its ending) holds files of this kind."""
        ...

    def inspect(self, path: Path, tokenizer: Path | None) -> Inspection:
        """Read facts and an example; ``tokenizer`` (a tokenizer.json or vocab.txt) decodes the example.

        Raises:
            DataError: the files are damaged.
        """
        ...

    def verify(self, path: Path) -> list[str]:
        """Return all problems of the files, one message each; hashes are compared if a manifest has them."""
        ...
