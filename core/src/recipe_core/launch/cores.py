"""Processor cores: how many there are, and how long waiting threads keep them busy. No torch here."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

SPIN_LIMITS: Mapping[str, str] = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
"""How long a thread of PyTorch spins at a barrier before it sleeps, for each OpenMP library that a PyTorch may bring.

libgomp (PyTorch's own packages for Linux) spins 300,000 times by default, which is a scheduler's whole time slice:
where another process uses the cores, a step takes several times as long (benchmarks/shared_machine.py). On idle cores,
2,000 to 5,000 spins cost nothing that could be measured, 1,000 up to a tenth, and no spinning at all
(``OMP_WAIT_POLICY=passive``) a quarter; 10,000 are slow again beside other programs.

Intel's and LLVM's OpenMP (macOS, Windows, conda) wait 200 ms by default. One millisecond is what Intel recommends and
``torch.backends.xeon.run_cpu`` sets, and the shortest wait but none that every release can read.

Each library ignores the variable of the other, so both are set without asking which one there is.
"""
SPIN_VARIABLES = ("OMP_WAIT_POLICY", *SPIN_LIMITS)
"""Environment variables by which a user decides it; OMP_WAIT_POLICY is read by all of these libraries."""


def usable_cores() -> int:
    """Number of cores that this process may use, where the platform knows it; otherwise the cores of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spin_choice(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the user decided how long waiting threads spin; empty where that is left to us."""
    return {name: environment[name] for name in SPIN_VARIABLES if name in environment}


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Have waiting threads sleep soon, in a process with this environment, unless the user decided about it.

    The libraries read the variables when they are loaded: call it before PyTorch is imported.
    """
    if not spin_choice(environment):  # any of the three: a limit of ours would override OMP_WAIT_POLICY
        environment.update(SPIN_LIMITS)
