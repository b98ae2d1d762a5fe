"""A campaign of faults: drawn from a seed for some minutes, each judged, with a table at the end.

    python tests/faults/campaign --minutes 20 --seed 3
    python tests/faults/campaign --seed 3 --only damage --case 17

Exit code 1 if there was any violation. The folder of each case that failed is kept, with the line that repeats it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import builds
import damage
import disks
import divergence
import hostile
import ranks
import removal
import stops
from cases import Family, Tried, case
from forked import adopt, orphans

MODULES = (stops, ranks, removal, builds, disks, divergence, damage, hostile)
FAMILIES = {module.FAMILY.name: module.FAMILY for module in MODULES}
WORKERS = 2


def attempted(family: Family, seed: int, number: int, base: Path, work: Path, keep: Path) -> Tried:
    """Try one case, and keep its folder if it is a violation."""
    name = f"{family.name}-{number}"
    folder, begin = work / name, time.monotonic()
    folder.mkdir()
    drawn = case(family, seed, number)
    try:
        violation = family.attempt(drawn, base, folder)
    except Exception:
        violation = f"the campaign itself failed: {traceback.format_exc()[-1500:]}"
    violation = "; ".join(filter(None, (violation, orphans())))
    if violation:
        line = f"python tests/faults/campaign --seed {seed} --only {family.name} --case {number}\n"
        (folder / "case.txt").write_text(f"{drawn}\n{violation}\n{line}", encoding="utf-8")
        keep.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(keep / name, ignore_errors=True)
        shutil.move(folder, keep / name)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Tried(family.name, number, str(drawn), violation, time.monotonic() - begin)


class Schedule:
    """The next family: the one that has had least of its share of the time."""

    def __init__(self, families: list[Family], cases: int | None) -> None:
        self._families = families
        self._cases = cases
        self._lock = multiprocessing.Lock()
        self._seconds = multiprocessing.Array("d", len(families))
        self._numbers = multiprocessing.Array("i", len(families))

    def next(self, guess: float = 5.0) -> tuple[int, int] | None:
        """Index of a family and number of its next case; None when all asked for were given out."""
        with self._lock:
            left = [i for i, _ in enumerate(self._families) if self._cases is None or self._numbers[i] < self._cases]
            if not left:
                return None
            chosen = min(left, key=lambda i: self._seconds[i] / self._families[i].share)
            self._numbers[chosen] += 1
            self._seconds[chosen] += guess  # the other worker sees that it is under way
            return chosen, self._numbers[chosen] - 1

    def took(self, index: int, seconds: float, guess: float = 5.0) -> None:
        """A case of the family at ``index`` took ``seconds``."""
        with self._lock:
            self._seconds[index] += seconds - guess


def work_through(families: list[Family], options: argparse.Namespace, base: Path, work: Path) -> list[Tried]:
    """All cases that fit into the time, in ``WORKERS`` processes."""
    schedule, children = Schedule(families, options.cases), []
    deadline = time.monotonic() + 60 * options.minutes
    for worker in range(WORKERS):
        if pid := os.fork():
            children.append(pid)
            continue
        try:
            adopt()
            with (work / f"tried-{worker}.jsonl").open("w", encoding="utf-8") as file:
                while time.monotonic() < deadline and (found := schedule.next()):
                    index, number = found
                    tried = attempted(families[index], options.seed, number, base, work, options.keep)
                    schedule.took(index, tried.seconds)
                    print(json.dumps(asdict(tried)), file=file, flush=True)
                    shown(tried)
        finally:
            os._exit(0)
    died = [pid for pid in children if os.waitpid(pid, 0)[1]]
    lines = [line for path in sorted(work.glob("tried-*.jsonl")) for line in path.read_text().splitlines()]
    lost = [Tried("campaign", pid, "a worker", "it was ended", 0.0) for pid in died]
    tried = [Tried(**json.loads(line)) for line in lines]
    return sorted(tried, key=lambda one: (one.family, one.number)) + lost


def shown(tried: Tried) -> None:
    """One line for each case; more where it failed."""
    mark = f"VIOLATION {tried.violation}" if tried.violation else "ok"
    line = f"{tried.family:10} {tried.number:4}  {tried.seconds:5.1f} s  {tried.what}: {mark}\n"
    os.write(1, line.encode())


def table(families: dict[str, str], tried: list[Tried]) -> str:
    """Rows of the families, and their sum. ``families``: why one was not tried, by name."""
    lines = ["", f"{'family':12}{'tried':>8}{'survived':>10}{'violations':>12}{'seconds':>10}"]
    for name in [*families, "all"]:
        own = [one for one in tried if name in (one.family, "all")]
        bad = sum(bool(one.violation) for one in own)
        counts = f"{len(own):8}{len(own) - bad:10}{bad:12}{sum(one.seconds for one in own):10.0f}"
        lines.append(f"{name:12}{counts}  {families.get(name, '')}".rstrip())
    return "\n".join(lines)


def options_of(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="no case is begun after so many (default: 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=FAMILIES, metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--case", type=int, help="only this one; with --only")
    parser.add_argument("--cases", type=int, help="at most so many of each family")
    parser.add_argument("--keep", type=Path, help="folder for cases that failed (default: fault-cases/seed-SEED)")
    options = parser.parse_args(words)
    if options.case is not None and len(options.only or ()) != 1:
        parser.error("--case needs --only FAMILY")
    options.keep = (options.keep or Path("fault-cases") / f"seed-{options.seed}").resolve()
    return options


def main(words: list[str]) -> int:
    """Run the campaign; return the exit code."""
    options = options_of(words)
    wanted = [FAMILIES[name] for name in options.only or FAMILIES]
    missing = {family.name: family.unavailable() for family in wanted}
    families = [family for family in wanted if not missing[family.name]]
    adopt()
    with tempfile.TemporaryDirectory(prefix="recipe-faults-") as temporary:
        base, work = Path(temporary) / "base", Path(temporary) / "work"
        base.mkdir()
        work.mkdir()
        os.environ |= {"RECIPE_CACHE": str(base / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(base / "cache" / "inductor")}
        for family in families:
            family.prepare(base)
        print(f"seed {options.seed}, {options.minutes:g} minutes, {', '.join(f.name for f in families)}", flush=True)
        if options.case is not None:
            tried = [attempted(families[0], options.seed, options.case, base, work, options.keep)]
            shown(tried[0])
        else:
            tried = work_through(families, options, base, work)
    print(table({name: f"skipped: {why}" if why else "" for name, why in missing.items()}, tried))
    bad = [one for one in tried if one.violation]
    for one in bad:
        print(f"{options.keep / one.family}-{one.number}: {one.what}: {one.violation}")
    return 1 if bad or not tried else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
