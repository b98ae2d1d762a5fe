"""Processor cores: how many there are, who uses them, and how long waiting threads keep them busy. No torch here."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, MutableMapping, Set
from dataclasses import dataclass
from pathlib import Path

from recipe_core.launch.host import PROC

SPIN_LIMITS: Mapping[str, str] = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
"""How long a thread of PyTorch spins at a barrier before it sleeps, for each OpenMP library that a PyTorch may bring.

libgomp (PyTorch's own packages for Linux) spins 300,000 times by default, which is a scheduler's whole time slice:
where another process uses the cores, a step takes several times as long (benchmarks/machine/shared_machine.py). On
idle cores, 2,000 to 5,000 spins cost nothing that could be measured, 1,000 up to a tenth, and no spinning at all
(``OMP_WAIT_POLICY=passive``) a quarter; 10,000 are slow again beside other programs.

Intel's and LLVM's OpenMP (macOS, Windows, conda) wait 200 ms by default. One millisecond is what Intel recommends and
``torch.backends.xeon.run_cpu`` sets, and the shortest wait but none that every release can read.

Each library ignores the variable of the other, so both are set without asking which one there is.
"""
NO_SPINNING: Mapping[str, str] = dict.fromkeys(SPIN_LIMITS, "0")
"""The same for a run that starts beside other programs on its cores."""
MANY = 0.25
"""Share of the cores; other programs that use more of them slow a run."""
_SHORTEST = 0.1
"""Seconds between two readings at the start, since the kernel counts in hundredths of one."""
SPIN_VARIABLES = ("OMP_WAIT_POLICY", *SPIN_LIMITS)
"""Environment variables by which a user decides it; OMP_WAIT_POLICY is read by all of these libraries."""


_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Number of cores that this process may use: those it is bound to, or as many as the quota of its container fills.

    A quota is rounded. On two cores, one thread takes 0.8 times as long as two for a step of the default megatron_gpt
    under a quota of 1 core, 0.9 times under 1.25, as long under 1.5, and 1.2 times under 1.75: the kernel pauses two
    threads that exceed their quota. Where the platform tells neither, these are the cores of the machine.
    """
    bound = len(own_cores()) or os.cpu_count() or 1
    quota = cpu_quota()
    return bound if quota is None else max(1, min(bound, round(quota)))


def cpu_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> float | None:
    """Return how many cores' time the control groups of this process grant it (``docker run --cpus``); None: no limit.

    The smallest quota of its group and those around it counts, of version 1 or 2 (docs.kernel.org, "CFS Bandwidth
    Control" and "Control Group v2"). A container may not see its own group's folder; its root is then that group.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts, read = (groups, groups / "unified"), _quota_2
        elif "cpu" in controllers.split(","):
            mounts, read = (groups / controllers, groups / "cpu"), _quota_1
        else:
            continue
        for mount in mounts:
            group = mount / path.lstrip("/")
            quotas += [read(folder) for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_1(group: Path) -> float | None:
    quota, period = (_numbers(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota[0] / period[0] if quota and period and quota[0] > 0 < period[0] else None


def _quota_2(group: Path) -> float | None:
    limit = _numbers(group / "cpu.max")  # quota and period; "max 100000" without a limit
    return limit[0] / limit[1] if len(limit) == 2 and limit[1] > 0 else None


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError):
        return []


def spin_choice(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the user decided how long waiting threads spin; empty where that is left to us."""
    return {name: environment[name] for name in SPIN_VARIABLES if name in environment}


def limit_spinning(environment: MutableMapping[str, str]) -> bool:
    """Have waiting threads sleep soon, in a process with this environment; False if the user decided about it.

    The libraries read the variables when they are loaded: call it before PyTorch is imported.
    """
    if spin_choice(environment):  # any of the three: a limit of ours would override OMP_WAIT_POLICY
        return False
    environment.update(SPIN_LIMITS)
    return True


@dataclass(frozen=True)
class Reading:
    """Seconds since some moment in the past."""

    clock: float
    busy: float
    """Of all cores that this process may use, together."""
    own: float
    """Of them, those of the run's processes."""


class OthersAtStart:
    """Other programs on the cores while this process starts, from its creation to the question.

    Quick: it reads no other process, and takes what this one has used from the kernel's counter. This process must have
    no children.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc, self._cores = proc, own_cores()
        self._before = self._reading()

    def use_cores(self) -> bool:
        """Return whether they use more than a quarter of the cores that this process may use.

        False under a quota, which pauses this process itself, and where there is no such /proc. Waits until a tenth of
        a second has passed.
        """
        if self._before is None or quota_below(len(self._cores)):
            return False
        time.sleep(max(0.0, self._before.clock + _SHORTEST - time.monotonic()))
        now = self._reading()
        if now is None:
            return False
        others = (now.busy - self._before.busy) - (now.own - self._before.own)
        return others > MANY * len(self._cores) * (now.clock - self._before.clock)

    def _reading(self) -> Reading | None:
        try:
            return Reading(time.monotonic(), busy_seconds(self._cores, self._proc), time.process_time())
        except (OSError, ValueError, IndexError):  # not Linux
            return None


def own_cores() -> set[int]:
    """Cores that this process may use; empty where the platform does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def quota_below(cores: int) -> bool:
    """Return whether the quota of this process is less than the time of ``cores`` cores."""
    quota = cpu_quota()
    return quota is not None and quota < cores


def busy_seconds(cores: Set[int], proc: Path) -> float:
    """Processor time of ``cores`` since the machine started, together.

    Raises:
        OSError, ValueError, IndexError: there is no such /proc.
    """
    lines = (proc / "stat").read_text(encoding="utf-8").splitlines()
    # user, nice, system, irq, softirq, and what the host of a virtual machine took; not idle and iowait
    counts = (line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit())
    mine = [words for words in counts if int(words[0][3:]) in cores]
    if not mine:
        raise ValueError("none of this process's cores is listed")
    ticks = sum(int(words[place]) for words in mine for place in (1, 2, 3, 6, 7, 8))
    return ticks / os.sysconf("SC_CLK_TCK")
