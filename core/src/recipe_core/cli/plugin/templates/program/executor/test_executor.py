"""Tasks end with their exit codes, and with the executor."""

from pathlib import Path

import pytest
from recipe_core import ConfigError, ExecutorRun, PartTask

from recipe_new_plugin.executor import tasks
from recipe_new_plugin.plugin import LowPriority


def task(folder: Path, number: int, *arguments: str) -> PartTask:
    """A task of any command of ``recipe``."""
    return PartTask(number=number, arguments=arguments, folder=folder, log=folder / f"{number}.log")


def run_in(folder: Path, address: str = "") -> ExecutorRun:
    """A preparation."""
    return ExecutorRun(name="test", address=address, folder=folder)


def test_the_results_are_exit_codes(tmp_path: Path) -> None:
    parts = [task(tmp_path, 1, "--version"), task(tmp_path, 2, "prepare", "nothing-of-this-name")]
    with tasks(LowPriority(), run_in(tmp_path, "2")) as submit:
        assert [future.result(timeout=100) for future in submit(parts)] == [0, 2]
    assert (tmp_path / "1.log").read_text().startswith("recipe, version ")


def test_tasks_end_with_the_executor(tmp_path: Path) -> None:
    with tasks(LowPriority(), run_in(tmp_path)) as submit:
        futures = submit([task(tmp_path, number, "ls") for number in range(1, 6)])
    assert all(future.done() for future in futures)


def test_an_address_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a number of processes"), tasks(LowPriority(), run_in(tmp_path, "x")):
        pass
