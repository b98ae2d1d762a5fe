"""The rank of this process, by the environment variables of our supervisor, torchrun or Slurm's srun.

The same command is one rank if one of these started it, else a whole run. Imports no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipe_core.errors import LaunchError
from recipe_core.launch.slurm_nodes import hosts, tasks_of_nodes
from recipe_core.launch.stop import leave_second_to_supervisor, unblock
from recipe_core.launch.supervisor import STORE, SUPERVISOR, TERMINAL, supervise
from recipe_core.launch.tee import keep

__all__ = ["Worker", "die_with_parent", "supervise", "worker"]


@dataclass(frozen=True)
class Worker:
    """One rank of a run of several processes."""

    rank: int
    world_size: int
    local_rank: int
    """Rank among the processes of this machine."""
    local_world_size: int
    """Number of processes of this machine, as far as known: at least ``local_rank + 1``."""
    launcher: Literal["recipe", "torchrun", "srun"]
    rendezvous: Mapping[str, str]
    """Rendezvous as environment variables: ``RECIPE_STORE``, or ``MASTER_ADDR`` and ``MASTER_PORT``."""

    def variables(self) -> dict[str, str]:
        """Return torchrun's environment variables for this rank, for libraries that read them."""
        names = ("rank", "world_size", "local_rank", "local_world_size")
        return {**{name.upper(): str(getattr(self, name)) for name in names}, **self.rendezvous}


def worker(environment: Mapping[str, str] | None = None) -> Worker | None:
    """Return the rank of this process; None if no launcher started it as one.

    Raises:
        LaunchError: some variables are missing, or a value is not a number.
    """
    env = os.environ if environment is None else environment
    ranked = {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & env.keys()
    if len(ranked) < 3 and "SLURM_STEP_ID" in env and _number(env, "SLURM_STEP_NUM_TASKS", 1) > 1:
        return _of_srun(env)
    return _of_torchrun(env) if ranked else None


def refuse_processes(worker: Worker | None, processes: int | None) -> None:
    """Refuse ``--processes`` in a process that a launcher started as a rank.

    Raises:
        LaunchError: torchrun or srun started it, and ``processes`` is set.
    """
    if worker is not None and worker.launcher != "recipe" and processes is not None:
        raise LaunchError(
            f"--processes: {worker.launcher} started this process already, as rank {worker.rank} of "
            f"{worker.world_size}; leave --processes {processes} out, or start `recipe run` without {worker.launcher}"
        )


def keep_log(worker: Worker | None, folder: Path) -> None:
    """Log the output of a rank of torchrun or srun in ``folder``, as our supervisor does for its own ranks.

    Raises:
        DiskError: the log cannot be written.
    """
    if worker is None or worker.launcher == "recipe":
        return
    if worker.rank == 0 and sys.stdout.isatty():
        os.environ |= {TERMINAL: "1", "COLUMNS": str(os.get_terminal_size(sys.stdout.fileno()).columns or 80)}
    keep(folder / f"rank-{worker.rank}.log")


def _of_torchrun(env: Mapping[str, str]) -> Worker:
    needed = ["RANK", "WORLD_SIZE", "LOCAL_RANK"]
    if STORE not in env and env.get("WORLD_SIZE") != "1":
        needed += ["MASTER_ADDR", "MASTER_PORT"]
    missing = [name for name in needed if name not in env]
    if missing:
        present = [name for name in needed if name in env]
        raise LaunchError(
            f"the environment says {_joined(present)} but not {_joined(missing)}; a rank needs all of them. "
            f"Start the ranks with `recipe run NAME --processes N`, torchrun or srun, or unset {_joined(present)}"
        )
    local_rank = _number(env, "LOCAL_RANK")
    return _checked(
        Worker(
            rank=_number(env, "RANK"),
            world_size=_number(env, "WORLD_SIZE"),
            local_rank=local_rank,
            local_world_size=_number(env, "LOCAL_WORLD_SIZE", local_rank + 1),
            launcher="recipe" if STORE in env else "torchrun",
            rendezvous={name: env[name] for name in (STORE, "MASTER_ADDR", "MASTER_PORT") if name in env},
        )
    )


def _of_srun(env: Mapping[str, str]) -> Worker:
    needed = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID"]
    missing = [name for name in needed if name not in env]
    if missing:
        raise LaunchError(
            f"the environment says SLURM_STEP_ID but not {_joined(missing)}; a rank under srun needs all of them. "
            "Start the run with `srun recipe run NAME`, one task per rank"
        )
    # Steps on one machine need different ports, and jobs and steps are numbered consecutively: the factor 31 keeps the
    # steps of a job apart from those of the next. The range ends below the kernel's ephemeral ports (32768).
    port = 10_000 + (_number(env, "SLURM_JOB_ID") * 31 + _number(env, "SLURM_STEP_ID")) % 20_000
    local_rank = _number(env, "SLURM_LOCALID")
    return _checked(
        Worker(
            rank=_number(env, "SLURM_PROCID"),
            world_size=_number(env, "SLURM_STEP_NUM_TASKS"),
            local_rank=local_rank,
            local_world_size=max(local_rank + 1, _tasks_of_node(env)),
            launcher="srun",
            rendezvous={
                "MASTER_ADDR": env.get("MASTER_ADDR") or first_host(env["SLURM_STEP_NODELIST"]),
                "MASTER_PORT": env.get("MASTER_PORT") or str(port),
            },
        )
    )


def _checked(worker: Worker) -> Worker:
    if not 0 <= worker.rank < worker.world_size or worker.local_rank < 0:
        raise LaunchError(
            f"rank {worker.rank} (local rank {worker.local_rank}) of {worker.world_size} ranks cannot be; "
            "ranks count from 0 to one below their number"
        )
    return worker


def _joined(names: list[str]) -> str:
    return ", ".join(names)


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise LaunchError(f"the environment says {name}={text!r}; expected a number") from None


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list: ``node02`` of ``node[02-04,07],other``."""
    first = next(hosts(nodelist), None)
    if first is None:
        raise LaunchError(f"SLURM_STEP_NODELIST={nodelist!r} names no host; set MASTER_ADDR to the host of rank 0")
    return first


def _tasks_of_node(env: Mapping[str, str]) -> int:
    counts = tasks_of_nodes(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(env, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else 0


def die_with_parent() -> None:
    """End this rank when its supervisor ends for any reason; do nothing if it has none.

    Call it first, before slow imports, and from the main thread. A killed supervisor cannot stop its ranks, and orphans
    would keep the devices. A rank of torchrun gets SIGUSR1 instead: it can still save before its node is reassigned.
    """
    unblock()
    # Removed, so that a program started by this rank does not take itself for a rank.
    supervisor = int(os.environ.pop(SUPERVISOR, "0"))
    if not supervisor:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            _watch(os.getppid(), _stop_without_torchrun)
        return
    leave_second_to_supervisor()
    if sys.platform == "linux":
        import ctypes
        import signal

        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:
        _watch(supervisor, _end_at_once)
    if os.getppid() != supervisor:  # it ended before prctl
        os._exit(1)


def _watch(parent: int, on_end: Callable[[int], None]) -> None:
    import threading
    import time

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        on_end(parent)

    threading.Thread(target=look, name="parent-watch", daemon=True).start()


def _end_at_once(_: int) -> None:
    os._exit(1)


def _stop_without_torchrun(agent: int) -> None:
    import signal

    with suppress(OSError):
        os.write(2, f"recipe: torchrun, process {agent}, is gone; its ranks save and stop\n".encode())
    os.kill(os.getpid(), signal.SIGUSR1)  # unlike SIGTERM, never counted as a second one
