"""A step of `recipe run megatron_gpt` on cores that other programs use, too, by how long waiting threads spin.

    PYTHONPATH=benchmarks python benchmarks/machine/shared_machine.py [--rounds 2] [--case "two busy loops"]
        [--litgpt ENVIRONMENT/bin/python]

Each case runs other programs at the same time: none; two busy loops of Python; a second run with the same setting; four
PyTorch processes that train a small network with PyTorch's defaults. Contestants, which take turns: ``recipe``, whose
command limits spinning (GOMP_SPINCOUNT=2000); the peer ``pytorch``, whose waiting threads spin as long as libgomp's
default; ``passive``, whose threads never spin (OMP_WAIT_POLICY=passive); ``trainer``, transformers' GPT-2 of the same
sizes and batches under its Trainer, with PyTorch's default; with ``--litgpt``, the Python of an environment with
litgpt, ``litgpt``, whose GPT of the same sizes it compiles and pre-trains (see litgpt_peer.py), with PyTorch's default.

Under a quota, as of a container, the contestants are ``recipe``, which takes as many threads as the quota fills, and
fixed numbers of threads. These cases need root, for a control group of their own.

Each run has a process of its own with all cores, no evaluation and no checkpoints. Its milliseconds per step come from
metrics.jsonl: the median of the steps after the first two, until there are 40 or the time for one run is over; ``null``
if there is none by then. ``others`` is the share of all cores that programs used which this script did not start:
anything but near 0 distorts the figures. Needs recipe-megatron-gpt, transformers, accelerate, Linux, and a PyTorch with
libgomp. Writes results/shared_machine.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import IO, Any

import common

from recipe_core.launch.cores import SPIN_VARIABLES, usable_cores


@dataclass(frozen=True)
class Contestant:
    """The recipe, and environment variables for it."""

    variables: Mapping[str, str] = field(default_factory=dict)

    def line(self, folder: Path, steps: int) -> list[str]:
        """Return the command for ``steps`` steps, whose seconds go to ``folder``/metrics.jsonl."""
        return [sys.executable, "-m", "recipe_core.cli", *RUN, f"train.steps={steps}", "--out", str(folder)]


class Trainer(Contestant):
    """transformers' Trainer."""

    def line(self, folder: Path, steps: int) -> list[str]:
        return [sys.executable, __file__, "--trainer", str(folder), str(steps)]


@dataclass(frozen=True)
class Litgpt(Contestant):
    """litgpt, which has an environment of its own."""

    python: str = ""

    def line(self, folder: Path, steps: int) -> list[str]:
        return [self.python, str(common.RESULTS.with_name("litgpt_peer.py")), str(folder), str(steps), sizes()]


def sizes() -> str:
    """Return the default megatron_gpt's sizes and settings as litgpt_peer.py takes them."""
    from recipe_core.engine.precision import multiplies_bf16
    from recipe_core.hooks.registry import load
    from recipe_core.settings.job import resolve

    job = resolve(load(), "megatron_gpt")
    model, train = job.model.config, job.train
    mixed = train.precision == "bf16_mixed" and multiplies_bf16("cpu")
    return json.dumps(
        {
            "sequence": job.data.config.sequence,
            **{name: getattr(model, name) for name in ("layers", "hidden", "heads", "vocabulary")},
            **{name: getattr(train, name) for name in ("global_batch", "micro_batch", "clip", "lr")},
            "log_every": 1,
            "precision": "bf16-mixed" if mixed else "32-true",
        }
    )


# libgomp ignores KMP_BLOCKTIME, but recipe takes it as the user's choice and sets nothing: libgomp's default remains.
CONTESTANTS = {
    "recipe": Contestant(), "pytorch": Contestant({"KMP_BLOCKTIME": "200"}),
    "passive": Contestant({"OMP_WAIT_POLICY": "passive"}), "trainer": Trainer(),
}  # fmt: skip
THREADS = [str(count) for count in range(1, (os.cpu_count() or 1) + 1)]
FIXED = {
    "recipe": Contestant(),
    **{f"OMP_NUM_THREADS={count}": Contestant({"OMP_NUM_THREADS": count}) for count in THREADS},
}
QUOTAS = (0.5, 1.0, 1.5)
"""Cores' time that a container may use."""
UNCOUNTED, COUNTED = 2, 40
SECONDS, PATIENCE = 15.0, 60.0
"""Limits of one run, from its first step and from its start."""
LIMIT = 570.0
"""Limit of the whole script: no round starts that would end later if it takes as long as those before."""
RUN = ("run", "megatron_gpt", "train.device=cpu", "train.eval_every=0", "train.save_every=0", "train.log_every=1")
LOOP = "import time; end = time.monotonic() + 120; print('ready', flush=True)\nwhile time.monotonic() < end: pass"
TRAINING = """
import time
import torch
from torch import nn
end = time.monotonic() + 120
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256), nn.Linear(256, 16))
optimizer, data = torch.optim.AdamW(model.parameters()), torch.randn(256, 256)
print("ready", flush=True)
while time.monotonic() < end:
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
"""
"""A script with PyTorch's defaults: it sets no variable. Both programs end by themselves if this script is killed."""


def cleared() -> dict[str, str]:
    """Return this process' environment without the variables that configure threads."""
    return {name: value for name, value in os.environ.items() if name not in (*SPIN_VARIABLES, "OMP_NUM_THREADS")}


@contextmanager
def process(line: list[str], environment: Mapping[str, str], output: IO[str] | int) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and kill it at the end of the context; it inherits our standard error."""
    started = subprocess.Popen(line, stdout=output, text=True, env=dict(environment))
    with started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def running(folder: Path, contestant: Contestant, steps: int) -> Iterator[Callable[[], list[float]]]:
    """Start a run in ``folder``; yield a function that returns the seconds of each step so far."""
    metrics, log = folder / "metrics.jsonl", folder.with_suffix(".log")
    environment = {**cleared(), **contestant.variables, "RECIPE_CACHE": str(folder.parent / "cache")}
    with log.open("w") as output, process(contestant.line(folder, steps), environment, output) as started:

        def seconds() -> list[float]:
            ended = started.poll() is not None  # before the rows are read: none comes later
            rows = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.exists() else []
            whole = [json.loads(row) for row in rows if row.endswith("\n")]
            found = [row["seconds"] for row in whole if "seconds" in row]
            if ended and len(found) < steps:
                sys.exit(f"the run ended with {started.returncode}: {log.read_text(encoding='utf-8')}")
            return found

        yield seconds


@contextmanager
def nothing(folder: Path, contestant: Contestant) -> Iterator[None]:
    """Start no other process."""
    yield


@contextmanager
def loops(folder: Path, contestant: Contestant) -> Iterator[None]:
    """Start two busy loops of Python."""
    with programs(LOOP, 2):
        yield


@contextmanager
def trainings(folder: Path, contestant: Contestant) -> Iterator[None]:
    """Start four processes that train with PyTorch's defaults."""
    with programs(TRAINING, 4):
        yield


@contextmanager
def programs(code: str, count: int) -> Iterator[None]:
    """Start ``count`` processes that run ``code``; enter the context when each has printed a line."""
    with ExitStack() as stack:
        line = [sys.executable, "-c", code]
        for started in [stack.enter_context(process(line, cleared(), subprocess.PIPE)) for _ in range(count)]:
            assert started.stdout is not None
            if started.stdout.readline() != "ready\n":
                sys.exit("a process to run beside did not start")
        yield


@contextmanager
def second(folder: Path, contestant: Contestant) -> Iterator[None]:
    """Start a second run with the same setting; enter the context when it trains."""
    end = time.monotonic() + PATIENCE
    with running(folder.with_name(f"{folder.name}-second"), contestant, 100_000) as seconds:
        while not seconds() and time.monotonic() < end:
            time.sleep(0.2)
        yield


def under_quota(cores: float) -> Callable[[Path, Contestant], AbstractContextManager[None]]:
    """Return a context that gives this process and those that it starts ``cores`` cores' time."""

    @contextmanager
    def limited(folder: Path, contestant: Contestant) -> Iterator[None]:
        root = Path("/sys/fs/cgroup")
        first = (root / "cpu").is_dir()  # version 1 of control groups
        root = root / "cpu" if first else root
        group, period = root / f"shared-machine-{os.getpid()}", 100_000
        group.mkdir()
        limit = f"{cores * period:.0f}"
        (group / ("cpu.cfs_quota_us" if first else "cpu.max")).write_text(limit if first else f"{limit} {period}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (root / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()

    return limited


CASES = {
    "nothing": nothing, "two busy loops": loops, "a second run": second, "four PyTorch processes": trainings,
    **{f"a quota of {cores:g} cores": under_quota(cores) for cores in QUOTAS},
}  # fmt: skip


def contestants(case: str) -> Mapping[str, Contestant]:
    """Return the contestants of a case."""
    return FIXED if "quota" in case else CONTESTANTS


def measured(folder: Path, contestant: Contestant) -> list[float]:
    """Return the milliseconds of each counted step of a run."""
    end = time.monotonic() + PATIENCE
    with running(folder, contestant, UNCOUNTED + COUNTED) as seconds:
        while not (found := seconds()) and time.monotonic() < end:
            time.sleep(0.1)
        end = min(end, time.monotonic() + SECONDS)
        while len(found) < UNCOUNTED + COUNTED and time.monotonic() < end:
            time.sleep(0.1)
            found = seconds()
    return [1000 * one for one in found[UNCOUNTED:]]


@dataclass
class Found:
    """Measurements of one contestant in one case."""

    rounds: list[list[float]] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def summed(self) -> dict[str, Any]:
        """Return the rounds' medians and their median, and the mean and number of all steps."""
        medians, steps = [round(median(one), 1) for one in self.rounds if one], [*chain(*self.rounds)]
        middle, average = (round(median(medians), 1), round(fmean(steps), 1)) if steps else (None, None)
        others = round(fmean(self.others), 3)
        return {"ms": middle, "mean_ms": average, "rounds": medians, "steps": len(steps), "others": others}


@contextmanager
def watched(others: list[float]) -> Iterator[None]:
    """Append the share of all cores that other programs used; ours have to end in this context."""
    before, began = foreign_seconds(), time.monotonic()
    yield
    others.append((foreign_seconds() - before) / (time.monotonic() - began) / (os.cpu_count() or 1))


def foreign_seconds() -> float:
    """Return the processor time of all programs on this machine except our ended children."""
    user, nice, system, _idle, _wait, *more = Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]
    ours = os.times()
    busy = sum(map(int, (user, nice, system, *more))) / os.sysconf("SC_CLK_TCK")
    return busy - ours.children_user - ours.children_system - ours.user - ours.system


def train_with_trainer(folder: Path, steps: int) -> None:
    """Train transformers' GPT-2 with the sizes, batches and settings of the default megatron_gpt on random tokens."""
    import torch
    import trainer_peer
    from transformers import GPT2Config, GPT2LMHeadModel

    from recipe_core.hooks.registry import load
    from recipe_core.settings.job import resolve

    job = resolve(load(), "megatron_gpt")
    model, sequence = job.model.config, job.data.config.sequence

    class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            generator = torch.Generator().manual_seed(index)
            ids = torch.randint(model.vocabulary, (sequence,), generator=generator)
            return {"input_ids": ids, "labels": ids}

    config = GPT2Config(
        vocab_size=model.vocabulary, n_positions=model.positions, n_embd=model.hidden, n_layer=model.layers,
        n_head=model.heads, resid_pdrop=model.dropout, embd_pdrop=model.dropout, attn_pdrop=model.attention_dropout,
        use_cache=False,
    )  # fmt: skip
    trainer_peer.train(folder, GPT2LMHeadModel(config), Words(), steps, job.train)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--case", action="append", choices=CASES)  # by default those that need no root
    parser.add_argument("--trainer", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--litgpt", metavar="PYTHON", help="of an environment with litgpt, a further contestant")
    options = parser.parse_args()
    if options.litgpt:
        CONTESTANTS["litgpt"] = Litgpt(python=options.litgpt)
    if options.trainer:
        train_with_trainer(Path(options.trainer[0]), int(options.trainer[1]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # ends the processes, too
    began, cases = time.monotonic(), options.case or [case for case in CASES if contestants(case) is CONTESTANTS]
    found = {case: {name: Found() for name in contestants(case)} for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        # What a later run finds made: the tokenizer and the tokens, and what litgpt has compiled.
        for name in sorted({"recipe", "litgpt"} & set(CONTESTANTS)):
            with running(Path(folder) / f"first-{name}", CONTESTANTS[name], 1) as seconds:
                while not seconds():
                    time.sleep(0.2)
        for number in range(options.rounds):
            if number and time.monotonic() - began > LIMIT * number / (number + 1):
                print(f"{number} rounds: another one would take too long", file=sys.stderr)
                break
            for case in cases:
                for name, contestant in list(contestants(case).items())[:: (-1) ** number]:  # who is first changes
                    out = Path(folder) / f"{case.replace(' ', '-')}-{name}-{number}"
                    one = found[case][name]
                    with watched(one.others), CASES[case](out, contestant):
                        one.rounds.append(measured(out, contestant))
                    print(f"{time.monotonic() - began:4.0f} s", case, name, one.summed(), flush=True)
    results = {case: {name: one.summed() for name, one in named.items()} for case, named in found.items()}
    written = {
        "what": "milliseconds per step of the default megatron_gpt on the CPU, by what runs beside it",
        "processor": common.processor(), "versions": common.versions("torch"), "threads": usable_cores(),
        "cases": results,
    }  # fmt: skip
    common.write("shared_machine", common.with_earlier("shared_machine", written, ("cases",)))


if __name__ == "__main__":
    main()
