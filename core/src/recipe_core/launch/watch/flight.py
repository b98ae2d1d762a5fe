"""Collectives under way, from PyTorch's flight recorder, if PyTorch is loaded. Imports no torch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""The recorder of all backends, and that of NCCL only, in older releases of PyTorch."""


def pending() -> list[dict[str, Any]]:
    """Return the collectives that this process has begun and not ended, oldest first; none without a recorder.

    It takes up to 60 ms, if the recorder is full. Each has ``name`` (``gloo:all_reduce``), ``seconds``, ``group``,
    ``number`` (its sequence number in the group, from 1), ``started`` (the device has begun it; never set by gloo), and
    ``thread``, the number of the thread that began it.
    """
    dump = _dump() or {}
    status, entries = dump.get("pg_status") or {}, dump.get("entries") or []
    return [
        {
            "name": str(entry.get("profiling_name", "collective")),
            "seconds": round(max(0.0, time.time() - float(entry.get("time_created_ns", 0)) / 1e9), 1),
            "group": ":".join(map(str, entry.get("process_group", ()))),
            "number": entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id"),
            "started": entry.get("state") == "started",
            "thread": _number(entry.get("thread_id")),
        }
        for entry in entries
        if not entry.get("retired", True) and not _is_over(entry, status)
    ]


def _is_over(entry: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    # An entry that was left open, though its group has completed later collectives.
    completed = _number(status.get(str(entry.get("pg_id")), {}).get("last_completed_collective"))
    number = _number(entry.get("collective_seq_id"))
    return not entry.get("is_p2p") and None not in (completed, number) and (number or 0) <= (completed or 0)


def _dump() -> Mapping[str, Any] | None:
    module = sys.modules.get("torch._C._distributed_c10d")
    dump = next((getattr(module, name) for name in _DUMPS if hasattr(module, name)), None)
    if dump is None:
        return None
    try:
        trace = json.loads(dump(includeCollectives=True, onlyActive=True))
    except Exception:  # a private function: nothing may hang on it
        return None
    return trace if isinstance(trace, Mapping) else None


def _number(text: object) -> int | None:
    try:
        return int(str(text))
    except ValueError:
        return None
