"""The toy in object storage: machines that share a server, and an action at a request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recipe_core.testing.objects import Faults, ObjectServer
from recipe_core.testing.runs import command, forked

ADDRESS = "s3://bucket/runs/one"


@dataclass
class Hook(Faults):
    """No faults, but an action at the first request whose line contains a text; requests wait for its end."""

    text: str = ""
    action: Callable[[], object] = bool
    done: threading.Event = field(default_factory=threading.Event)

    def draw(self, request: str) -> str:  # type: ignore[override]
        with self._lock:
            if self.text and self.text in request and not self.done.is_set():
                self.done.set()
                self.action()
        return "none"


@dataclass
class Machine:
    """Commands on one machine: with its own working folders and cache."""

    server: ObjectServer
    folder: Path

    @property
    def working(self) -> Path:
        """The working folder of its only run."""
        (found,) = (path for path in (self.folder / "work").iterdir() if "former" not in path.name)
        return found

    @property
    def places(self) -> dict[str, str]:
        """The variables that name its folders."""
        return {"RECIPE_WORK": str(self.folder / "work"), "RECIPE_CACHE": str(self.folder / "cache")}

    def run(self, *words: str, **environment: str) -> tuple[int | None, str]:
        """Run ``recipe WORDS``; return the exit code and the output.

        Processes are forks of one that has imported PyTorch, but for several ranks: the client of object storage cannot
        be forked, and the parent of the ranks has one.
        """
        variables = {**self.server.environment, **self.places, **environment}
        if "--processes" not in words:
            return forked(*words, **variables)
        finished = command(*words, **variables)
        return finished.returncode, finished.stdout

    def train(self, *words: str, **environment: str) -> str:
        """Train the toy at the address, successfully; return the output."""
        code, text = self.run("run", "toy:tiny", "--out", ADDRESS, *words, **environment)
        assert code == 0, text
        return text
