"""Runs of ``recipe run`` whose files are in object storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.cli.arguments import targets_of
from recipe_core.cli.options import show
from recipe_core.errors import ConfigError
from recipe_core.files.objects import is_address

if TYPE_CHECKING:
    from recipe_core.launch.worker import Worker
    from recipe_core.settings.job import Job


@contextmanager
def run_place(
    arguments: Sequence[str], out: Path | str | None, worker: Worker | None
) -> Iterator[tuple[tuple[str, ...], Path | None]]:
    """Yield arguments and run folder of a line; for an address in object storage, those of its working folder.

    The address is locked until the block ends, and then has all files of the run. A rank of our supervisor gets its
    folder as it is: the supervisor has done that.

    Raises:
        RecipeError: the address cannot be used, see :func:`recipe_core.checkpoint.remote.opened.opened`.
    """
    from recipe_core.checkpoint.remote.objects import Objects
    from recipe_core.checkpoint.remote.opened import awaited, opened, require_run

    address = _address(arguments, out)
    if address is None or (worker is not None and worker.launcher == "recipe"):
        yield tuple(arguments), None if out is None else Path(out)
        return
    if any(is_address(target) for target in targets_of(arguments)):
        require_run(Objects.at(address))
    if worker is not None and worker.rank > 0:
        folder = awaited(address)
        yield _with_folder(arguments, folder), folder
        return
    with opened(address, show) as folder:
        yield _with_folder(arguments, folder), folder


def require_possible(job: Job, folder: Path | None) -> None:
    """Check that a run of ``job`` can be in object storage, if ``folder`` is the working folder of an address.

    Raises:
        ConfigError: it cannot.
    """
    from recipe_core.checkpoint.remote import record
    from recipe_core.train.start import stored

    known = record.read(folder) if folder is not None else None
    if known is not None:
        stored.require_possible(job, known.address)


def _address(arguments: Sequence[str], out: Path | str | None) -> str | None:
    from recipe_core.checkpoint.remote import record
    from recipe_core.files.objects import ObjectPath

    named = [target for target in targets_of(arguments) if is_address(target)]
    if named and out is not None and (not is_address(out) or ObjectPath.parse(out) != ObjectPath.parse(named[0])):
        raise ConfigError(
            f"--out: {out} is not {named[0]}, the run to continue; leave out --out, or download the run's job.yaml and "
            "name that to begin another run"
        )
    if named or isinstance(out, str):
        return named[0] if named else str(out)
    folders = [out] if out is not None else [Path(target) for target in targets_of(arguments)]
    known = next(filter(None, map(record.read, folders)), None)  # a working folder stands for its address
    return known.address if known else None


def _with_folder(arguments: Sequence[str], folder: Path) -> tuple[str, ...]:
    return tuple(str(folder) if is_address(argument) else argument for argument in arguments)
