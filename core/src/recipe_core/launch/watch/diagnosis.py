"""The diagnosis of a run that hangs: which rank it waits for, by the heartbeats of all ranks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_core.launch.watch.heartbeat_files import RankStatus, Record

MAIN = "main"
"""The lane of the thread that trains; the lane of a save in the background is named after its activity."""
_SHOWN = 8
"""Ranks that a message names; it counts the others."""
_LOST_ADVICE = "More may be in its log; the same line goes on from the last checkpoint"
_THREADS = 4
"""Stacks that a message shows for each rank."""


@dataclass(frozen=True)
class Diagnosis:
    """The reason why a run cannot continue."""

    ranks: tuple[int, ...]
    """The ranks that it waits for."""
    lost: bool
    """True if they have ended or cannot be reached: the same command may continue the run. Else they are stuck."""
    text: str
    """The message to the user."""
    speaker: int
    """The one rank that runs the alert (``train.on_hang``)."""
    hosts: tuple[str, ...]
    """The host of each of ``ranks``; empty if unknown."""


@dataclass(frozen=True)
class Evidence:
    """The knowledge of one rank about all ranks when it finds that the run hangs.

    Args:
        rank: this rank.
        own_record: its record.
        statuses: of all ranks, by number; the entry of this rank is ignored.
        lane: the lane of this rank that is stuck.
        timeout: ``train.timeout``.
        quiet: seconds without a heartbeat after which a rank counts as silent.
    """

    rank: int
    own_record: Record
    statuses: Mapping[int, RankStatus]
    lane: str
    timeout: float
    quiet: float

    def has_lost_rank(self) -> bool:
        """True if another rank has ended or is silent."""
        return any(rank != self.rank and self._lost_reason(status) for rank, status in self.statuses.items())

    def diagnose(self) -> Diagnosis:
        """Name the ranks that the run waits for: the lost ones, else those that do not wait, else the furthest behind.

        If another rank has ended with a diagnosis, return that one.
        """
        peers = {rank: status for rank, status in self.statuses.items() if rank != self.rank}
        if diagnosis := reported_diagnosis(peers):
            return diagnosis
        for lost, phrases in (
            (True, {rank: text for rank, status in peers.items() if (text := self._lost_reason(status))}),
            (False, self._blocking_ranks(peers)),
        ):
            if phrases:
                return self._diagnosis(phrases, lost=lost)
        return self._diagnose_all_waiting(peers)

    def _lost_reason(self, status: RankStatus) -> str | None:
        record = status.record
        if record is None or not status.joined:
            return f"has not come within {self.timeout:g} s (train.timeout), or its machine cannot be reached"
        if ended := record.get("ended"):
            return f"{ended['text']}; {_last_seen(record)}"
        if status.exited:
            return f"exited without reporting an error: it was killed, or ended by itself; {_last_seen(record)}"
        if status.silent >= self.quiet:
            return (
                f"has given no sign of life for {status.silent:.0f} s: it is stopped or was killed, its machine or its "
                f"network is lost, or its interpreter is blocked by native code; {_last_seen(record)}"
            )
        return None

    def _blocking_ranks(self, peers: Mapping[int, RankStatus]) -> dict[int, str]:
        """Describe the live ranks that do not wait, including this one, by rank."""
        records = {self.rank: self.own_record, **{r: s.record for r, s in peers.items() if s.record is not None}}
        busy = {rank: lane for rank, record in records.items() if not (lane := _lane(record, self.lane)).get("waits")}
        # If several are busy, those whose activity has lasted long: one with many short activities is only slow.
        stuck = {rank: lane for rank, lane in busy.items() if lane.get("seconds", 0.0) >= self.timeout / 2}
        return {rank: _activity_phrase(lane) for rank, lane in (stuck or busy).items()}

    def _diagnosis(self, phrases: Mapping[int, str], *, lost: bool) -> Diagnosis:
        lines = [f"{self._rank_name(rank)} {phrase}" for rank, phrase in list(phrases.items())[:_SHOWN]]
        if len(phrases) > _SHOWN:
            lines.append(f"and {len(phrases) - _SHOWN:,} more ranks")
        own_lane = _lane(self.own_record, self.lane)
        if self.rank not in phrases and own_lane.get("waits"):
            lines.append(f"{self._rank_name(self.rank)} {_activity_phrase(own_lane)}")
        lines.append(_LOST_ADVICE if lost else f"If it was only slow, raise train.timeout ({self.timeout:g} s)")
        if not lost:
            for rank in list(phrases)[:_SHOWN]:
                lines += _stack_lines(rank, self._record(rank))
        return self._make(tuple(phrases), lost, lines, self._speaker(phrases))

    def _make(self, ranks: tuple[int, ...], lost: bool, lines: Sequence[str], speaker: int) -> Diagnosis:
        return Diagnosis(ranks, lost, "\n".join(lines), speaker, tuple(map(self._host, ranks)))

    def _record(self, rank: int) -> Record:
        return self.own_record if rank == self.rank else self.statuses[rank].record or {}

    def _diagnose_all_waiting(self, peers: Mapping[int, RankStatus]) -> Diagnosis:
        """Diagnose live ranks that all wait: name those that are behind; if none is, all, and their hosts."""
        records = {rank: status.record for rank, status in peers.items() if status.record is not None}
        progress = {rank: _progress(record) for rank, record in {**records, self.rank: self.own_record}.items()}
        if (least := min(progress.values())) != max(progress.values()):
            phrases = {
                rank: f"is behind, and waits itself: it {_activity_phrase(_lane(self._record(rank), self.lane))}"
                for rank, position in progress.items()
                if position == least
            }
            return self._diagnosis(phrases, lost=False)
        hosts = list(dict.fromkeys(str(self._record(rank).get("host")) for rank in sorted(progress)))
        lines = [
            f"all {len(progress)} ranks live and wait for each other: the network between "
            f"{' and '.join(hosts[:_SHOWN]) if len(hosts) > 1 else 'them'} is cut, or they call different collectives",
            *(
                f"{self._rank_name(rank)} {_activity_phrase(_lane(self._record(rank), self.lane))}"
                for rank in sorted(progress)[:_SHOWN]
            ),
            _LOST_ADVICE,
        ]
        here = self.own_record.get("host")
        remote = tuple(rank for rank, record in records.items() if record.get("host") != here) or tuple(records)
        return self._make(remote, True, lines, self._speaker(dict.fromkeys(remote, "")))

    def _rank_name(self, rank: int) -> str:
        if len(self.statuses) == 1:
            return "the run"
        host = self._host(rank)
        return f"rank {rank} of {len(self.statuses)}{f' (host {host})' if host else ''}"

    def _host(self, rank: int) -> str:
        """The host in a record of this run, else the one where its launcher starts it, else that of an earlier run."""
        status = self.statuses[rank]
        recorded = str(self._record(rank).get("host", ""))
        return recorded if rank == self.rank or status.joined else status.expected or recorded

    def _speaker(self, culprits: Mapping[int, str]) -> int:
        """Return the lowest live rank that is not a culprit; if all are, the lowest live rank."""
        live = [rank for rank, status in self.statuses.items() if rank == self.rank or not self._lost_reason(status)]
        return min([rank for rank in live if rank not in culprits] or live)


def world_size_conflict(own_record: Record, peers: Mapping[int, RankStatus]) -> str | None:
    """Return a message if a live rank has another world size than this one: they can never communicate."""
    records = [status.record for status in peers.values() if status.joined and status.record is not None]
    first: dict[Any, Record] = {}
    for record in [own_record, *(record for record in records if not record["ended"])]:
        first.setdefault(record["world_size"], record)
    if len(first) == 1:
        return None
    lines = [f"{number} on rank {record['rank']} ({record['host']})" for number, record in first.items()]
    return (
        f"the ranks do not agree, and nothing was computed:\n  - number of ranks (WORLD_SIZE): {', '.join(lines)}\n"
        "Start all of them with the same number"
    )


def reported_diagnosis(peers: Mapping[int, RankStatus]) -> Diagnosis | None:
    """Return the diagnosis of a rank that has ended with one: it saw more than this rank can see now."""
    for status in peers.values():
        ended = (status.record or {}).get("ended") or {}
        if status.joined and (record := ended.get("verdict")):
            ranks, hosts = tuple(record["ranks"]), tuple(record["hosts"])
            return Diagnosis(ranks, record["lost"], record["text"], record["speaker"], hosts)
    return None


def _lane(record: Record, name: str) -> Mapping[str, Any]:
    lanes: Mapping[str, Mapping[str, Any]] = record.get("lanes", {})
    return lanes.get(name) or lanes.get(MAIN) or {"name": "start"}


def _progress(record: Record) -> tuple[int, int, bool]:
    """Return a rank's step, the number of the collective it waits in, and True if its device has started that."""
    pending: Sequence[Mapping[str, Any]] = record.get("pending") or ({},)
    first = pending[0]
    return int(_lane(record, MAIN).get("step", 0)), int(first.get("number") or 0), bool(first.get("started"))


def _activity_phrase(lane: Mapping[str, Any]) -> str:
    """``has been in 'loader' of step 5, micro batch 1 for 12 s``."""
    name, within = str(lane.get("name")), str(lane.get("within") or "")
    step, micro = lane.get("step"), lane.get("micro")
    where = f" of step {step}" if step else ""
    where += f", micro batch {micro}" if micro is not None else ""
    activity = f"has waited in {name!r}" if lane.get("waits") else f"has been in {name!r}"
    activity += f" ({within})" if within and within != name else ""
    return f"{activity}{where} for {lane.get('seconds', 0.0):.0f} s"


def _last_seen(record: Record) -> str:
    lane = _lane(record, MAIN)
    step = f" of step {lane['step']}" if lane.get("step") else ""
    return f"last seen in {str(lane.get('name'))!r}{step}"


def _stack_lines(rank: int, record: Record) -> list[str]:
    stacks: Mapping[str, Sequence[str]] = record.get("stacks") or {}
    lines = []
    for thread, frames in list(stacks.items())[:_THREADS]:
        lines += [f"Rank {rank}, thread {thread}, innermost call last:", *(f"  {frame}" for frame in frames)]
    for collective in list(record.get("pending") or ())[:_THREADS]:
        lines.append(
            f"Rank {rank}, under way: {collective['name']}, number {collective['number']} of group "
            f"{collective['group']}"
        )
    return lines
