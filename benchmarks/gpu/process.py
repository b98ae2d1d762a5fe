"""Processes of their own for the parts, forked from one that has imported everything and touched no device."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PRELOADED = ("accelerate", "part", "recipe_core.train.run")
"""Importing them takes longer than some parts."""
WITHOUT_TORCHAO = ("transformers.trainer", "recipe_hf_finetune.run")
"""The same, unless torchao is installed: they import it, and it asks the device for its properties; a process that has
done so can fork none that use it."""


def context() -> Any:
    """Where processes are started; the modules beside this file are found there, too."""
    here = str(Path(__file__).parent)
    if here not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload([*PRELOADED, *(WITHOUT_TORCHAO if find_spec("torchao") is None else ())])
    return found


def measured(
    call: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], seconds: float, log: Path
) -> dict[str, Any] | None:
    """The result of ``call`` in a process of its own, or ``failed``: the reason; None: it took longer than ``seconds``.

    What it prints goes to ``log``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    answer = log.with_suffix(".json")
    answer.unlink(missing_ok=True)
    process = context().Process(target=_answer, args=(call, arguments, log, answer))
    process.start()
    process.join(seconds)
    late = process.is_alive()
    if process.pid is not None and late:
        _end(process.pid)
    process.join()
    if late:
        return None
    if answer.is_file():
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        answer.unlink()
        return result
    code = process.exitcode or 0
    if code < 0:
        name = signal.Signals(-code).name
        return {"failed": f"killed by {name}, as the kernel does where the host's memory is full"}
    return {"failed": f"ended with exit code {code} and no result; its output is in {log}"}


def _end(pid: int) -> None:
    """End a part with the workers of its loader, or alone where it has not come to have a group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


def _answer(call: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], log: Path, answer: Path) -> None:
    """In the new process: have all output in ``log``, and the result in ``answer``."""
    os.setsid()
    with log.open("w", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    try:
        text = json.dumps(call(*arguments))
    except Exception as error:
        traceback.print_exc()
        text = json.dumps({"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]})
    answer.write_text(text, encoding="utf-8")
