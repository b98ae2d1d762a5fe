"""The engine: what differs between devices."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from recipe_core import NativeEngine, Train

from recipe_new_plugin.plugin import Threads


class ThreadsEngine(NativeEngine):
    """PyTorch on the CPU, with a number of threads and without denormal numbers.

    The base class joins the process group and implements every method of ``recipe_core.Engine`` by PyTorch. Override
    those in which your devices differ: ``device_loader`` moves micro batches there, ``to_host`` and ``load_target``
    serve checkpoints, ``mean``, ``gather`` and ``barrier`` communicate.
    """

    def __init__(self, config: Threads, train: Train) -> None:
        super().__init__("cpu", train.timeout)
        self.config = config

    def __enter__(self) -> ThreadsEngine:
        """Begin a run: join the other processes, then set up the device."""
        super().__enter__()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(self.config.threads)
        torch.set_flush_denormal(self.config.flush_denormal)  # has no effect on processors that cannot
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run, also one that failed."""
        torch.set_flush_denormal(False)
        torch.set_num_threads(self._threads)
        super().__exit__(kind, error, trace)

    def counters(self) -> dict[str, float]:
        """Return what metrics.jsonl records in each line."""
        return {"engine_threads": float(torch.get_num_threads())}


def build(config: Threads, train: Train, layout: Any) -> ThreadsEngine:
    """Return a context manager that gives the engine; ``layout`` is the run's, with its settings."""
    return ThreadsEngine(config, train)
