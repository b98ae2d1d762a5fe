"""The hooks of the program ``recipe``: launchers, executors and commands."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core.hooks.markers import hookspec
from recipe_core.hooks.specs.command import CommandSpec
from recipe_core.hooks.specs.executor import ExecutorSpec
from recipe_core.hooks.specs.launcher import Launcher


@hookspec
def register_launchers() -> Iterable[Launcher]:
    """Return the launchers that this plugin adds: batch systems for ``recipe submit NAME --to LAUNCHER``.

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import Launcher, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Pbs:
            queue: str = ""


        @hookimpl
        def register_launchers() -> Iterable[Launcher]:
            yield Launcher(
                name="pbs",
                build="my_plugin.pbs:scripts",  # scripts(submission, config) -> {file name: text}
                submit="my_plugin.pbs:submit",  # submit(folder, names) -> job id; without it, the text is printed
                config=Pbs,  # the section ``pbs`` of the site profile
                summary="PBS Professional",
            )
    """
    return ()


@hookspec
def register_executors() -> Iterable[ExecutorSpec]:
    """Return the executors that this plugin adds: engines for the parts of ``recipe prepare`` (``--on EXECUTOR``).

    .. code-block:: python

        from collections.abc import Iterable
        from dataclasses import dataclass

        from recipe_core import ExecutorSpec, hookimpl


        @dataclass(frozen=True, kw_only=True)
        class Dask:
            threads: int = 1


        @hookimpl
        def register_executors() -> Iterable[ExecutorSpec]:
            yield ExecutorSpec(
                name="dask",
                build="my_plugin.executor:tasks",  # tasks(config, run): a context manager that gives submit(tasks)
                config=Dask,  # the section ``dask`` of the site profile
                summary="workers of Dask",
            )
    """
    return ()


@hookspec
def register_commands() -> Iterable[CommandSpec]:
    """Return the commands that this plugin adds: ``recipe NAME ...``.

    .. code-block:: python

        from collections.abc import Iterable

        from recipe_core import CommandSpec, hookimpl


        @hookimpl
        def register_commands() -> Iterable[CommandSpec]:
            yield CommandSpec(
                name="rates",
                build="my_plugin.command:rates",  # a function below @click.command(), imported when it is called
                summary="print the learning rates of a recipe",
            )
    """
    return ()
