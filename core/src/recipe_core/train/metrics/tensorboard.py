"""TensorBoard: its event files, written without TensorFlow."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from recipe_core.train.metrics.record_file import RecordFile
from recipe_core.train.metrics.tracker import TrackedRun


class TensorBoard:
    """A tracker that writes an event for each row into the folder ``tensorboard`` of the run.

    A failure to write does not end a run, see :class:`recipe_core.train.metrics.record_file.RecordFile`.
    """

    def __init__(self, run: TrackedRun) -> None:
        path = _new_file(run.folder / "tensorboard")
        self._events = RecordFile(path, "TensorBoard events", run.warn, _header(run.since))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See :class:`recipe_core.train.metrics.tracker.Tracker`."""
        from tensorboardX.proto.summary_pb2 import Summary

        # One event for all values: checksums take longer than the rest of a row.
        scalars = [Summary.Value(tag=_clean(tag), simple_value=float(value)) for tag, value in values.items()]
        self._events.append(step, _framed(step=step, summary=Summary(value=scalars)))

    def close(self) -> None:
        """See :class:`recipe_core.train.metrics.tracker.Tracker`."""
        self._events.close()


@cache
def _clean(tag: str) -> str:
    # the characters that other writers of such files allow
    return re.sub(r"[^-/\w.]", "_", tag).lstrip("/")


def build(config: object, run: TrackedRun) -> TensorBoard:
    """The tracker ``tensorboard``."""
    return TensorBoard(run)


def _new_file(folder: Path) -> Path:
    # TensorBoard reads files in the order of their names.
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
    names = (name if number == 0 else f"{name}.{number}" for number in count())
    return next(path for path in map(folder.joinpath, names) if not path.exists())


def _header(since: int) -> bytes:
    # TensorBoard discards the events of earlier files after `since`.
    from tensorboardX.proto.event_pb2 import SessionLog

    events = _framed(file_version="brain.Event:2")
    if since:
        events += _framed(step=since + 1, file_version="brain.Event:2")
        events += _framed(step=since + 1, session_log=SessionLog(status=SessionLog.START))
    return events


def _framed(**fields: Any) -> bytes:
    # TFRecord: length, checksum of the length, event, checksum of the event
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    event = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(event))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), event, struct.pack("<I", masked_crc32c(event))])
