"""Processes of tests start as forks of one that has imported the heavy libraries, which takes longer than a test."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Mapping
from typing import Any

from recipe_core.engine.stack import imports_choose_device

DEADLINE = 500.0
"""Seconds after which what a test started counts as hung: more than a busy machine needs, and less than the 600 s after
which pytest-timeout ends all tests at once, without saying which rank it was."""
_IMPORTED = ["recipe_core.train.run", "torch._dynamo", "torch.distributed.pipelining"]
_BERT = "transformers.models.bert.modeling_bert"  # more than PyTorch itself; where it is missing, it is passed over


def context() -> Any:
    """How processes of tests start: where the system can, as forks of one that imported what they need and did nothing
    else; with it, start only functions of installed modules, whose arguments can be pickled."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED + ([] if imports_choose_device() else [_BERT]))
    return context


def enter(environment: Mapping[str, str]) -> None:
    """In the new process: replace the environment, which stems from the start of the first one.

    What was imported before stays as it is; the garbage collector need not look through it again and again.
    """
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    if torch := sys.modules.get("torch"):
        # PyTorch replaces its pool of threads at the first use after a fork. Two threads of autograd that do it at once
        # end the process ("Invalid thread pool!"), so it is done here, where there is one.
        torch.set_num_threads(torch.get_num_threads())
