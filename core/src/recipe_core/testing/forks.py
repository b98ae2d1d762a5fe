"""Processes of tests are forks of one that has imported the heavy libraries, which takes longer than a test."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Mapping
from typing import Any

from recipe_core.engine.machine.packages import imports_choose_device

DEADLINE = 500.0
"""Seconds after which a process of a test counts as hung: more than a busy machine needs, and less than the 600 s after
which pytest-timeout ends all tests at once, without naming the rank."""
_IMPORTED = ["recipe_core.train.run", "torch._dynamo", "torch.distributed.pipelining"]
_BERT = "transformers.models.bert.modeling_bert"  # takes longer than PyTorch itself; skipped if it is not installed


def context() -> Any:
    """Return the multiprocessing context of tests: a fork server that has imported the heavy libraries, else ``spawn``.

    Start only functions of installed modules with it, with arguments that can be pickled.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED + ([] if imports_choose_device() else [_BERT]))
    return context


def enter(environment: Mapping[str, str]) -> None:
    """Replace the environment in a new process, which has that of the fork server.

    Objects that exist already are frozen, so that the garbage collector does not scan them again.
    """
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    if torch := sys.modules.get("torch"):
        # PyTorch replaces its thread pool at the first use after a fork. Two threads of autograd that do so at once end
        # the process ("Invalid thread pool!"); here is only one thread.
        torch.set_num_threads(torch.get_num_threads())
