"""``--on EXECUTOR --parts N`` of ``recipe prepare``: parts that run side by side, here or elsewhere. No torch here."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.data.parts import PART, merge, part_of
from recipe_core.errors import ConfigError, ExitCode, RecipeError

if TYPE_CHECKING:
    from recipe_core.data.prepare import PreparePart
    from recipe_core.data.prepare.executors.parts_folder import PartsFolder
    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs import Dataset
    from recipe_core.hooks.specs.executor import ExecutorRun, ExecutorSpec, PartTask
    from recipe_core.launch.launchers.site import Site

WORKERS = "workers"


class StoppedError(RecipeError):
    """A signal ended the command and what it had started; the same command continues."""

    exit_code = ExitCode.STOPPED


@dataclass(frozen=True)
class Placement:
    """The options of ``recipe prepare`` that say where its parts are made."""

    executor: str
    address: str
    parts: int
    site: Path | None

    @classmethod
    def parse(cls, on: str | None, parts: int | None, site: Path | None) -> Placement | None:
        """Read the options; None without any of them.

        Raises:
            ConfigError: one is missing that the others need.
        """
        if on is None:
            if parts is not None or site is not None:
                raise ConfigError(f"{'--site' if parts is None else '--parts'}: goes with --on EXECUTOR, as --on local")
            return None
        if parts is None:
            raise ConfigError("--on: needs --parts N, the number of parts, as in --on local --parts 16")
        executor, _, address = on.partition(":")
        return cls(executor, address, parts, site)


def make(
    registry: Registry, datasets: Mapping[str, Dataset], spec: Dataset, words: Sequence[str], placement: Placement
) -> tuple[Mapping[str, Any], str]:
    """Make a data set by parts that an executor runs; return its manifest, and its folder.

    Args:
        registry: of the executors.
        datasets: that can be prepared, by name.
        spec: the data set.
        words: its settings, as ``setting=value``.
        placement: where the parts are made.

    Raises:
        ConfigError: the data set cannot be divided, its output exists, or parts are there that do not fit.
        PluginError: there is no such executor, or it has a mistake.
        RecipeError: parts have failed, or the executor cannot be reached.
    """
    from recipe_core.data.prepare.executors.parts_folder import PartsFolder
    from recipe_core.launch.launchers.site import read_profile
    from recipe_core.settings.fill import from_words, plain

    executor = registry.get("executor", placement.executor)
    if part_of(spec, words)[0] is not None:
        raise ConfigError(f"{PART}: --on makes all parts; leave {PART}= out")
    if not spec.prepare_part or not spec.merge_parts:
        raise ConfigError(f"--on: the dataset {spec.name!r} does not say how it divides; prepare it without --on")
    settings: Any = from_words(spec.prepare_config, spec.name, words, "output=data/wiki")
    output = _new_output(settings)
    profile = read_profile(registry, executor, placement.site)
    folder = PartsFolder(output, spec.name, plain(settings), placement.parts)
    processes = _processes(settings, words)
    run = _run(folder, placement.address, processes, profile.site)
    with folder.held():
        if missing := folder.missing():
            tasks = {part: _task(folder, part, _arguments(spec, words, processes)) for part in missing}
            _make_parts(folder, tasks, executor, profile.config, run)
        manifest, _ = merge(datasets, [str(folder.output), *(str(folder.part(part)) for part in folder.parts)])
        left = folder.remove()
    if left:
        click.echo(
            f"{folder.path}: kept, for it holds what `recipe prepare` did not write ({', '.join(left)})", err=True
        )
    return manifest, str(output)


def _new_output(settings: Any) -> Path:
    from recipe_core.files import require_local

    if not (output := str(getattr(settings, "output", ""))):
        raise ConfigError("output: --on needs the folder to make, as in output=data/wiki")
    require_local(output, "output")
    path = Path(output).expanduser()
    if path.exists() or path.is_symlink():
        raise ConfigError(f"output: {output} exists; name another folder, or remove it (--on replaces none)")
    return path


def _processes(settings: Any, words: Sequence[str]) -> int:
    # One process for each part, unless the user wants more: the parts are what runs side by side.
    chosen = any(word.startswith(f"{WORKERS}=") for word in words)
    return getattr(settings, WORKERS, 1) or 1 if chosen else 1


def _arguments(spec: Dataset, words: Sequence[str], processes: int) -> list[str]:
    """The arguments of ``recipe`` that all parts have."""
    kept = [word for word in words if word.partition("=")[0] not in ("output", WORKERS)]
    if any(setting.name == WORKERS for setting in fields(spec.prepare_config)):
        kept.append(f"{WORKERS}={processes}")
    return ["prepare", spec.name, *kept]


def _make_parts(
    folder: PartsFolder, tasks: Mapping[PreparePart, PartTask], spec: ExecutorSpec, config: Any, run: ExecutorRun
) -> None:
    from recipe_core.data.prepare.executors.schedule import make_parts, submitting
    from recipe_core.hooks.kinds import code_of

    with _continuing(folder), submitting(spec, config, run) as submit:
        make_parts(folder, tasks, submit, code_of(spec))


def _task(folder: PartsFolder, part: PreparePart, arguments: Sequence[str]) -> PartTask:
    from recipe_core.hooks.specs.executor import PartTask

    own = [f"output={folder.part(part)}", f"{PART}={part}", "--progress", str(folder.progress(part))]
    return PartTask(number=part.number, arguments=(*arguments, *own), folder=Path.cwd(), log=folder.log(part))


def _run(folder: PartsFolder, address: str, processes: int, site: Site) -> ExecutorRun:
    import shlex

    from recipe_core.hooks.specs.executor import ExecutorRun

    return ExecutorRun(
        name=re.sub(r"[^\w.-]+", "-", f"prepare-{folder.output.name}", flags=re.ASCII),
        address=address,
        folder=folder.executor,
        cpus=processes,
        program=tuple(shlex.split(site.program)),
        environment=site.environment,
        setup=site.setup,
    )


@contextmanager
def _continuing(folder: PartsFolder) -> Iterator[None]:
    """Print how to continue an interrupted preparation; SIGTERM and SIGHUP end what it has started, as Ctrl-C does."""
    text = f"ended what it had started; {folder.path} keeps the parts, and the same command makes only the others"

    def stop(number: int, _: object) -> None:
        raise StoppedError(f"stopped by {signal.Signals(number).name}: {text}")

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, stop) for number in numbers if os.name == "posix"}
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"recipe prepare: {text}", err=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
