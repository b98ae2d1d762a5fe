"""``python faulty_rank.py FAULT RANK STEP WORDS``: ``recipe WORDS`` with the toy plugin, and a fault in some ranks.

The fault happens from step STEP (from 1) on, in the rank RANK, or in ``all``; the file ``injected`` in the current
folder gets its time then, and from there on the ranks' watchdogs count. ``mistake`` is a wrong word on the line of a
rank, and no file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.cli import main as cli
from recipe_core.launch import supervisor
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.testing import toy
from recipe_core.testing.forked_rank import ForkedRank
from recipe_core.testing.toy_parts import Toy, Vectors
from recipe_core.testing.unhurried import measure_own_time, watch_from


def sleep() -> None:
    while True:
        time.sleep(3600)


FAULTS: dict[str, tuple[type, str, Callable[[], None]]] = {
    "none": (Toy, "forward", lambda: None),
    "loader": (Vectors, "read", sleep),
    "forward": (Toy, "forward", sleep),
    "stop": (Toy, "forward", lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "leave": (Toy, "forward", lambda: os._exit(0)),
    "exit": (Toy, "forward", lambda: sys.exit(0)),
    "crash": (Toy, "forward", lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "native": (Toy, "forward", lambda: ctypes.PyDLL(None).sleep(3600)),  # which keeps the interpreter's lock
    "slow": (Toy, "forward", lambda: time.sleep(0.4)),
    "save": (Checkpoints, "save", sleep),
}


def inject(fault: str, rank: str, step: int) -> None:
    """Have the method of ``fault`` do it from ``step`` on."""
    owner, name, action = FAULTS[fault]
    method = getattr(owner, name)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if rank in ("all", os.environ.get("RANK", "0")) and beat.step >= step:
            injected = Path("injected")
            if not injected.exists():
                injected.write_text(str(time.time()))
            action()
        return method(*args, **kwargs)

    setattr(owner, name, faulty)


if __name__ == "__main__":
    setattr(cli, "load_plugins", toy.registry)  # noqa: B010 - mypy rejects the assignment
    setattr(supervisor, "Popen", ForkedRank)  # noqa: B010
    measure_own_time()
    watch_from(Path("injected").absolute())
    fault, rank, step, *words = sys.argv[1:]
    if fault == "mistake":
        words += ["train.lr=fast"] * (rank == os.environ["RANK"])
    else:
        inject(fault, rank, int(step))
    sys.exit(cli.main(words))
