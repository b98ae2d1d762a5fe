"""Training Llama 124M on a CPU: `recipe run llama` against transformers' Trainer and litgpt, on the same text.

    PYTHONPATH=benchmarks python benchmarks/training/train_llama.py [--rounds 2] [--steps 3] [--text TEXT]
        [--litgpt ENVIRONMENT/bin/python] [--precision fp32] [--tiny]

The recipe is llama:124m with rows of 1,024 tokens and batches of 2. The text, wiki-sample.jsonl.gz, is prepared once by
`recipe prepare` with GPT-2's tokenizer. Contestants, each with a process of its own for each run, take turns:
``recipe``; ``transformers``, its LlamaForCausalLM of the same config.json under its Trainer (SDPA, fused AdamW);
``litgpt``, which compiles its model (see litgpt_peer.py, which says how to install it), left out without ``--litgpt``.
These train on the same rows in the same order, without a mask. ``recipe, documents`` and ``transformers, documents``
train on these rows with their documents kept apart: by data.document_mask, and by position ids that restart at each
document, of which transformers makes a mask for SDPA. ``recipe, packed`` trains on rows filled with whole documents
(data.rows=packed).

The precision is fp32, or bf16_mixed (autocast for the peers) where the processor has bf16 instructions. Tokens/s are
without padding. The first three steps of a run are not counted; its speed is that of the median step. A step of ours
and of the Trainer lasts until its update, without logging; litgpt's until the next update. Each run must have as many
parameters as ours, and begin at a loss within 0.5 of the logarithm of the vocabulary. The floor is the time of the
model's matrix products at the speed of the best one measured here; as usual, causal attention counts in full, but only
pairs of tokens of one document count where documents are kept apart. ``documents_per_row`` says how many parts of
documents the counted rows have. ``--tiny`` tries the script out with a small model.

Needs recipe-llama, recipe-megatron-gpt, transformers and accelerate in one environment. It prints a table and, with
``--write``, all that it measured into a file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import common
import numpy as np

from recipe_core.launch.cores import usable_cores

RUN = (
    "train.device=cpu", "train.global_batch=2", "train.micro_batch=2", "train.warmup_steps=0", "train.eval_every=0",
    "train.save_every=0", "train.log_every=1",
)  # fmt: skip
TINY = ("model.layers=2", "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.mlp=176", "data.sequence=128")
ROWS = {
    "plain": (),
    "documents": ("data.document_mask=true",),
    "packed": ("data.document_mask=true", "data.rows=packed"),
}
"""Settings of the data by kind of rows."""
UNCOUNTED = 3
NEAR = 0.5
"""How far from the logarithm of the vocabulary the loss of random weights may be."""


@dataclass(frozen=True)
class Contestant:
    """A program, and the kind of rows that it trains on."""

    program: str
    rows: str


CONTESTANTS = {
    "recipe": Contestant("recipe", "plain"),
    "transformers": Contestant("transformers", "plain"),
    "litgpt": Contestant("litgpt", "plain"),
    "recipe, documents": Contestant("recipe", "documents"),
    "transformers, documents": Contestant("transformers", "documents"),
    "recipe, packed": Contestant("recipe", "packed"),
}
PEERS = {
    "recipe": ("transformers", "litgpt"),
    "recipe, documents": ("transformers, documents",),
    "recipe, packed": ("transformers, documents",),
}
"""With whom each of ours is compared."""


class Work:
    """The folder of the token files, rows and runs, and the settings of all runs in it."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.litgpt = folder, options.litgpt
        self.steps = UNCOUNTED + options.steps
        self.words = [
            "llama:124m", f"data.files={folder / 'tokens'}", f"train.precision={options.precision}",
            f"train.steps={self.steps}", *RUN, *(TINY if options.tiny else ()),
        ]  # fmt: skip
        self.job = job_of(self.words)

    def prepare(self, text: Path) -> None:
        """Make token files of ``text``, and store the rows that each kind of run reads."""
        line = ["prepare", "gpt_indexed", f"inputs={text}", f"tokenizer={common.real('gpt2')}"]
        self.end(self.recipe(*line, f"output={self.folder / 'tokens'}"), "prepare")
        for kind in ROWS:
            np.savez(self.rows(kind), **read_rows([*self.words, *ROWS[kind]], self.folder / "cache"))

    def rows(self, kind: str) -> Path:
        """Return the file of the rows of this kind."""
        return self.folder / f"{kind}.npz"

    def recipe(self, *words: str) -> list[str]:
        """Return the command line of ``recipe``."""
        return [sys.executable, "-m", "recipe_core.cli", *words]

    def line(self, contestant: Contestant, out: Path) -> list[str]:
        """Return the command that trains in ``out``."""
        if contestant.program == "recipe":
            return self.recipe("run", *self.words, *ROWS[contestant.rows], "--out", str(out))
        rows = str(self.rows(contestant.rows))
        if contestant.program == "transformers":
            return [sys.executable, __file__, "--trainer", str(out), rows, *self.words]
        sizes = json.dumps({**litgpt_sizes(self.job), "rows": rows})
        peer, steps = common.RESULTS.with_name("litgpt_peer.py"), self.steps - 1  # it takes one more
        return [self.litgpt, str(peer), str(out), str(steps), sizes]

    def end(self, line: list[str], name: str) -> int:
        """Run a command to its end; return the bytes of its peak of resident memory."""
        log = self.folder / f"{name}.log"
        environment = {**os.environ, "RECIPE_CACHE": str(self.folder / "cache")}
        with log.open("w") as output:
            process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{name} ended with {process.returncode}:\n{log.read_text(encoding='utf-8')[-4000:]}")
        return usage.ru_maxrss * 1024

    def run(self, name: str, number: int) -> dict[str, Any]:
        """Train one contestant; return its seconds, its losses and its peak of memory."""
        out = self.folder / f"{name.replace(', ', '-')}-{number}"
        peak = self.end(self.line(CONTESTANTS[name], out), out.name)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        found = {
            "seconds": [line["seconds"] for line in lines if "seconds" in line][-(self.steps - UNCOUNTED) :],
            "parameters": next((line["parameters"] for line in lines if "parameters" in line), None),
        }
        if CONTESTANTS[name].program == "recipe":
            losses = [line["loss"] for line in lines]
            found["parameters"] = parameters(self.job)
        else:
            losses = json.loads((out / "losses.json").read_text(encoding="utf-8"))
        self.require_same(name, found["parameters"], losses[0])
        return {**found, "peak": peak, "losses": losses[: self.steps]}

    def require_same(self, name: str, count: int, first: float) -> None:
        """Exit if a run did not train the model of the others from random weights."""
        ours, random = parameters(self.job), math.log(self.job.model.config.vocabulary)
        if count != ours:
            sys.exit(f"{name} has {count:,} parameters, expected the {ours:,} of the recipe")
        if not abs(first - random) < NEAR:
            sys.exit(f"{name} begins at the loss {first:.3f}, expected {random:.3f}, within {NEAR}")


def job_of(words: list[str]) -> Any:
    """The job that ``recipe run WORDS`` runs."""
    from recipe_core.hooks.registry import load
    from recipe_core.settings.job import resolve

    return resolve(load(), words[0], words[1:])


def read_rows(words: list[str], cache: Path) -> dict[str, Any]:
    """The rows that ``recipe run WORDS`` trains on, in their order."""
    import torch

    from recipe_core.layouts.parallel import Run
    from recipe_megatron_gpt.data.samples import build

    job = job_of(words)
    run = Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=job.train, cache=cache, vocabulary=job.model.config.vocabulary,
    )  # fmt: skip
    batch = build(job.data.config, run).read("train", 0, run.train_samples)
    return {name: rows.numpy() for name, rows in batch.items()}


def parameters(job: Any) -> int:
    """How many parameters our model has."""
    from recipe_llama.model.facts import facts

    return facts(job.model.config, job.data.config.sequence).parameters


def litgpt_sizes(job: Any) -> dict[str, Any]:
    """Sizes and settings as litgpt_peer.py takes them."""
    model, train = job.model.config, job.train
    sizes = ("layers", "hidden", "heads", "kv_heads", "mlp", "vocabulary", "norm_eps")
    return {
        "sequence": job.data.config.sequence,
        **{name: getattr(model, name) for name in sizes},
        **{name: getattr(train, name) for name in ("global_batch", "micro_batch", "clip", "lr")},
        "log_every": 1,
        "precision": "bf16-mixed" if train.precision == "bf16_mixed" else "32-true",
    }


def train_with_trainer(folder: Path, file: Path, words: list[str]) -> None:
    """Train transformers' Llama on the rows of ``file``, with the settings of ``recipe run WORDS``."""
    import torch
    import trainer_peer
    from transformers import AutoConfig, AutoModelForCausalLM

    from recipe_core.ops.documents import document_positions
    from recipe_llama.model.hf import HuggingFace

    job = job_of(words)
    rows = {name: torch.from_numpy(values) for name, values in np.load(file).items()}
    columns = {"input_ids": rows["tokens"], "labels": rows["tokens"]}  # transformers shifts the labels itself
    if "document_ids" in rows:
        columns["position_ids"] = document_positions(rows["document_ids"])
        columns["labels"] = rows["tokens"].masked_fill(columns["position_ids"] == 0, -100)
    samples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    values = json.loads(HuggingFace().adapter(job.model.config).files["config.json"])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    trainer = trainer_peer.train(
        folder, model, samples, job.train.steps, job.train, weight_decay=job.train.weight_decay,
        train_sampling_strategy="sequential", logging_strategy="steps", logging_steps=1,
    )  # fmt: skip
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    (folder / "losses.json").write_text(json.dumps(losses), encoding="utf-8")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write(json.dumps({"parameters": sum(one.numel() for one in model.parameters())}) + "\n")


def described(work: Work, kind: str) -> dict[str, Any]:
    """Real tokens of a step, documents of a row, and the floor, over the counted rows of a kind."""
    from recipe_llama.model.facts import facts

    config, sequence, batch = work.job.model.config, work.job.data.config.sequence, work.job.train.global_batch
    rows = np.load(work.rows(kind))
    ids = rows.get("document_ids", np.ones_like(rows["tokens"]))[UNCOUNTED * batch :]
    sizes = [np.bincount(row)[1:] for row in ids]  # 0 is padding
    pairs = sum(int((row.astype(np.int64) ** 2).sum()) for row in sizes) / len(sizes) / sequence**2
    tokens = float((ids != 0).sum()) / len(ids) * batch
    sample = facts(config, sequence)
    dense = (sample.flops_per_sample - sample.attention_flops) * tokens / (sequence * batch)
    products = [(sequence * batch, config.hidden, width) for width in (config.hidden, config.mlp)]
    products.append((sequence * batch, config.mlp, config.hidden))
    flops = batch * (dense + sample.attention_flops * pairs)
    least = common.floor(flops, products, bf16=work.job.train.precision != "fp32")
    return {
        "real_tokens_per_step": round(tokens, 1),
        "documents_per_row": round(sum(map(np.count_nonzero, sizes)) / len(sizes), 2),
        "floor": {**least, "tokens_per_second": round(tokens / least["seconds_per_step"], 1)},
    }


def summary(runs: list[dict[str, Any]], tokens: float) -> dict[str, Any]:
    """Medians over the rounds; the loss is that of the first step."""
    seconds = [median(run["seconds"]) for run in runs]
    return {
        "seconds_per_step": round(median(seconds), 4),
        "lowest": round(min(seconds), 4),
        "highest": round(max(seconds), 4),
        "tokens_per_second": round(tokens / median(seconds), 1),
        "peak_megabytes": round(median(run["peak"] for run in runs) / 1e6),
        "parameters": runs[0]["parameters"],
        "first_loss": round(runs[0]["losses"][0], 3),
        "last_loss": round(runs[0]["losses"][-1], 3),
    }


def times_faster(ours: list[dict[str, Any]], peers: list[dict[str, Any]], tokens: float) -> dict[str, float]:
    """How many times more tokens/s ours has, by round; ``tokens`` is its number in a step by the peer's."""
    pairs = [tokens * median(b["seconds"]) / median(a["seconds"]) for a, b in zip(ours, peers, strict=True)]
    return {"median": round(median(pairs), 2), "lowest": round(min(pairs), 2)}


def compare(work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """All in turn, as many rounds as asked for."""
    names = [name for name, one in CONTESTANTS.items() if options.litgpt or one.program != "litgpt"]
    rows = {kind: described(work, kind) for kind in ROWS}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name, done in runs.items():
            done.append(work.run(name, number))
            note = f"round {number + 1} of {options.rounds}, {name}: {median(done[-1]['seconds']):.2f} s/step"
            print(note, file=sys.stderr, flush=True)
    tokens = {name: rows[CONTESTANTS[name].rows]["real_tokens_per_step"] for name in names}
    results: dict[str, Any] = {name: summary(done, tokens[name]) for name, done in runs.items()}
    for name, peers in PEERS.items():
        results[name]["times_faster"] = {
            peer: times_faster(runs[name], runs[peer], tokens[name] / tokens[peer]) for peer in peers if peer in runs
        }
    return {**results, "rows": rows, "rounds": options.rounds, "steps": options.steps}


def report(results: dict[str, Any]) -> None:
    """Print a table."""
    print(f"{'':24}{'s/step':>10}{'tokens/s':>10}{'of floor':>10}{'peak MB':>9}{'first loss':>12}  times faster")
    for name, contestant in CONTESTANTS.items():
        if name not in results:
            print(f"{name:24} left out: --litgpt names no Python")
            continue
        result, least = results[name], results["rows"][contestant.rows]["floor"]
        share = result["tokens_per_second"] / least["tokens_per_second"]
        pairs = result.get("times_faster", {}).items()
        ratios = "; ".join(f"{ratio['median']:.2f} (lowest {ratio['lowest']:.2f}) than {peer}" for peer, ratio in pairs)
        print(
            f"{name:24}{result['seconds_per_step']:10.2f}{result['tokens_per_second']:10.0f}{share:10.0%}"
            f"{result['peak_megabytes']:9}{result['first_loss']:12.3f}  {ratios}"
        )


def versions(litgpt: str | None) -> dict[str, str]:
    """Those of all contestants; exit if the Python ``litgpt`` has no litgpt."""
    found = common.versions("torch", "transformers", "accelerate")
    if litgpt is None:
        return found
    line = [litgpt, "-c", "from importlib.metadata import version as v; print(v('litgpt'), v('torch'))"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"--litgpt: {litgpt}: {error}; expected the Python of an environment with litgpt (see litgpt_peer.py)")
    return {**found, **dict(zip(("litgpt", "torch_of_litgpt"), done.stdout.split(), strict=True))}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--text", type=Path, help="default: wiki-sample.jsonl.gz in $RECIPE_DATA")
    parser.add_argument("--litgpt", metavar="PYTHON", help="of an environment with litgpt, a further contestant")
    parser.add_argument("--precision", choices=("fp32", "bf16_mixed"), help="default: bf16_mixed if not emulated")
    parser.add_argument("--tiny", action="store_true", help="try the script out")
    parser.add_argument("--trainer", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer:
        folder, file, *words = options.trainer
        train_with_trainer(Path(folder), Path(file), words)
        return
    options.precision = options.precision or common.multiplied({"bf16_mixed": "bf16_mixed", "fp32": "fp32"})[0]
    load = os.getloadavg()[0]
    written: dict[str, Any] = {
        "what": "Llama 124M, sequence 1024, batch 2, real text; medians over processes of their own, in turn",
        "results": {},
        "load_before": round(load, 1),
        "threads": usable_cores(),
        "processor": common.processor(),
        "versions": versions(options.litgpt),
    }
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder), options)
        work.prepare(options.text or common.real("wiki-sample.jsonl.gz"))
        written["results"] = {options.precision: compare(work, options)}
    report(written["results"][options.precision])
    if not options.tiny:
        common.write("train_llama", common.with_earlier("train_llama", written, ["results"]))


if __name__ == "__main__":
    main()
