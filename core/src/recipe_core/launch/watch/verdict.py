"""Which rank a run waits for: judged from what the ranks say of themselves on the board. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_core.launch.watch.board import Record, Sight

MAIN = "main"
"""The lane of the thread that trains; that of a save beside it is named after its activity."""
_SHOWN = 8
"""So many ranks are named; the others are counted."""
_GOES_ON = "More may be in its log; the same line goes on from the last checkpoint"
_THREADS = 4
"""So many stacks are shown of a rank."""


@dataclass(frozen=True)
class Verdict:
    """Why a run cannot go on."""

    ranks: tuple[int, ...]
    """The ranks that it waits for."""
    lost: bool
    """They are gone, or cannot be reached: the same line may go on from there. Else they are there and do not move."""
    text: str
    """The message to the user."""
    speaker: int
    """The one rank that raises the alarm (``train.on_hang``)."""
    hosts: tuple[str, ...]
    """The host of each of ``ranks``; empty where it is not known."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Verdict:
        """The verdict that a rank has left on the board."""
        ranks, hosts = tuple(record["ranks"]), tuple(record["hosts"])
        return cls(ranks, record["lost"], record["text"], record["speaker"], hosts)


@dataclass(frozen=True)
class Case:
    """The knowledge of one rank when it finds that the run does not go on.

    Args:
        rank: its own.
        mine: its own record.
        sights: the other ranks, by number; its own entry is ignored.
        lane: the lane of its own that is stuck.
        timeout: ``train.timeout``.
        quiet: seconds without a beat after which a rank counts as silent.
    """

    rank: int
    mine: Record
    sights: Mapping[int, Sight]
    lane: str
    timeout: float
    quiet: float

    def someone_lost(self) -> bool:
        """True if it is known already that another rank has ended, or does not live."""
        return any(rank != self.rank and self._lost(sight) for rank, sight in self.sights.items())

    def judge(self) -> Verdict:
        """Name the ranks that the run waits for: the lost ones, else those that do not wait, else the last."""
        others = {rank: sight for rank, sight in self.sights.items() if rank != self.rank}
        if verdict := known(others):
            return verdict
        for lost, phrases in (
            (True, {rank: text for rank, sight in others.items() if (text := self._lost(sight))}),
            (False, self._late(others)),
        ):
            if phrases:
                return self._verdict(phrases, lost=lost)
        return self._all_wait(others)

    def _lost(self, sight: Sight) -> str | None:
        """A phrase for a rank that has ended, has not come or is silent; None for one that lives."""
        record = sight.record
        if record is None or not sight.came:
            return f"has not come within {self.timeout:g} s (train.timeout), or its machine cannot be reached"
        if ended := record.get("ended"):
            return f"{ended['text']}; {_last(record)}"
        if sight.gone:
            return f"is gone, and left no word: it was killed, or ended by itself; {_last(record)}"
        if sight.silent >= self.quiet:
            return (
                f"has given no sign of life for {sight.silent:.0f} s: it is stopped or was killed, its machine or its "
                f"network is lost, or its interpreter is blocked by native code; {_last(record)}"
            )
        return None

    def _late(self, others: Mapping[int, Sight]) -> dict[int, str]:
        """Phrases for the living ranks that do not wait, this one included, if some rank waits for them."""
        records = {self.rank: self.mine, **{r: s.record for r, s in others.items() if s.record is not None}}
        busy = {rank: lane for rank, record in records.items() if not (lane := _lane(record, self.lane)).get("waits")}
        # Of several, those that have been at it for long; one that goes on in many short activities is only slow.
        stuck = {rank: lane for rank, lane in busy.items() if lane.get("seconds", 0.0) >= self.timeout / 2}
        return {rank: _doing(lane) for rank, lane in (stuck or busy).items()}

    def _verdict(self, phrases: Mapping[int, str], *, lost: bool) -> Verdict:
        lines = [f"{self._named(rank)} {phrase}" for rank, phrase in list(phrases.items())[:_SHOWN]]
        if len(phrases) > _SHOWN:
            lines.append(f"and {len(phrases) - _SHOWN:,} more ranks")
        mine = _lane(self.mine, self.lane)
        if self.rank not in phrases and mine.get("waits"):
            lines.append(f"{self._named(self.rank)} {_doing(mine)}")
        lines.append(_GOES_ON if lost else f"If it was only slow, raise train.timeout ({self.timeout:g} s)")
        if not lost:
            for rank in list(phrases)[:_SHOWN]:
                lines += _stacks(rank, self._record(rank))
        return self._of(tuple(phrases), lost, lines, self._speaker(phrases))

    def _of(self, ranks: tuple[int, ...], lost: bool, lines: Sequence[str], speaker: int) -> Verdict:
        return Verdict(ranks, lost, "\n".join(lines), speaker, tuple(map(self._host, ranks)))

    def _record(self, rank: int) -> Record:
        return self.mine if rank == self.rank else self.sights[rank].record or {}

    def _all_wait(self, others: Mapping[int, Sight]) -> Verdict:
        """Every rank lives and waits: name those that are behind; where none is, all, and their hosts."""
        records = {rank: sight.record for rank, sight in others.items() if sight.record is not None}
        places = {rank: _place(record) for rank, record in {**records, self.rank: self.mine}.items()}
        if (least := min(places.values())) != max(places.values()):
            phrases = {
                rank: f"is behind, and waits itself: it {_doing(_lane(self._record(rank), self.lane))}"
                for rank, place in places.items()
                if place == least
            }
            return self._verdict(phrases, lost=False)
        hosts = list(dict.fromkeys(str(self._record(rank).get("host")) for rank in sorted(places)))
        lines = [
            f"all {len(places)} ranks live and wait for each other: the network between "
            f"{' and '.join(hosts[:_SHOWN]) if len(hosts) > 1 else 'them'} is cut, or they call different collectives",
            *(
                f"{self._named(rank)} {_doing(_lane(self._record(rank), self.lane))}"
                for rank in sorted(places)[:_SHOWN]
            ),
            _GOES_ON,
        ]
        here = self.mine.get("host")
        away = tuple(rank for rank, record in records.items() if record.get("host") != here) or tuple(records)
        return self._of(away, True, lines, self._speaker(dict.fromkeys(away, "")))

    def _named(self, rank: int) -> str:
        if len(self.sights) == 1:
            return "the run"
        host = self._host(rank)
        return f"rank {rank} of {len(self.sights)}{f' (host {host})' if host else ''}"

    def _host(self, rank: int) -> str:
        """The host of a rank: by its record of this run, else where its launcher starts it, else by an earlier one."""
        sight = self.sights[rank]
        known = str(self._record(rank).get("host", ""))
        return known if rank == self.rank or sight.came else sight.expected or known

    def _speaker(self, culprits: Mapping[int, str]) -> int:
        """The lowest rank that lives and is not the cause; where all are, the lowest that lives."""
        living = [rank for rank, sight in self.sights.items() if rank == self.rank or not self._lost(sight)]
        return min([rank for rank in living if rank not in culprits] or living)


def contradiction(mine: Record, others: Mapping[int, Sight]) -> str | None:
    """The message where a rank that lives was told another number of ranks than this one: they can never meet."""
    records = [sight.record for sight in others.values() if sight.came and sight.record is not None]
    told = [mine, *(record for record in records if not record["ended"])]
    first: dict[Any, Record] = {}
    for one in told:
        first.setdefault(one["world_size"], one)
    if len(first) == 1:
        return None
    lines = [f"{number} on rank {one['rank']} ({one['host']})" for number, one in first.items()]
    return (
        f"the ranks do not agree, and nothing was computed:\n  - number of ranks (WORLD_SIZE): {', '.join(lines)}\n"
        "Start all of them with the same number"
    )


def known(others: Mapping[int, Sight]) -> Verdict | None:
    """The verdict of a rank that has found one and ended: it saw more than can be seen now."""
    for sight in others.values():
        ended = (sight.record or {}).get("ended") or {}
        if sight.came and (found := ended.get("verdict")):
            return Verdict.of(found)
    return None


def _lane(record: Record, name: str) -> Mapping[str, Any]:
    """A lane of a record; that of the main thread where the rank has no such lane."""
    lanes: Mapping[str, Mapping[str, Any]] = record.get("lanes", {})
    return lanes.get(name) or lanes.get(MAIN) or {"name": "start"}


def _place(record: Record) -> tuple[int, int, bool]:
    """How far a rank is: its step, the number of the collective that it waits in, and if its device has begun that."""
    pending: Sequence[Mapping[str, Any]] = record.get("pending") or ({},)
    first = pending[0]
    return int(_lane(record, MAIN).get("step", 0)), int(first.get("number") or 0), bool(first.get("started"))


def _doing(lane: Mapping[str, Any]) -> str:
    """``has been in 'loader' of step 5, micro batch 1 for 12 s``."""
    name, within = str(lane.get("name")), str(lane.get("within") or "")
    step, micro = lane.get("step"), lane.get("micro")
    where = f" of step {step}" if step else ""
    where += f", micro batch {micro}" if micro is not None else ""
    what = f"has waited in {name!r}" if lane.get("waits") else f"has been in {name!r}"
    what += f" ({within})" if within and within != name else ""
    return f"{what}{where} for {lane.get('seconds', 0.0):.0f} s"


def _last(record: Record) -> str:
    """The last that is known of a rank."""
    lane = _lane(record, MAIN)
    step = f" of step {lane['step']}" if lane.get("step") else ""
    return f"last seen in {str(lane.get('name'))!r}{step}"


def _stacks(rank: int, record: Record) -> list[str]:
    """Lines with the Python stacks of a rank, and its collectives under way."""
    stacks: Mapping[str, Sequence[str]] = record.get("stacks") or {}
    lines = []
    for thread, frames in list(stacks.items())[:_THREADS]:
        lines += [f"Rank {rank}, thread {thread}, innermost call last:", *(f"  {frame}" for frame in frames)]
    for one in list(record.get("pending") or ())[:_THREADS]:
        lines.append(f"Rank {rank}, under way: {one['name']}, number {one['number']} of group {one['group']}")
    return lines
