"""``recipe run hf_finetune``: prepare model and samples, train with the Trainer, report the results.

The core handles launching, run folder, metrics, checkpoints and signals; Hugging Face's Trainer trains.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from recipe_core import ConfigError, Job, atomic_folder
from recipe_core.data.identity import identity_of
from recipe_core.engine import protocol as engines
from recipe_core.engine.agreement import on_rank_0
from recipe_core.errors import ExitCode
from recipe_core.files import home
from recipe_core.launch.stop import StopFlag, StopMode
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.report import show
from recipe_core.train.metrics.results import noting_divergence
from recipe_core.train.start import folder as folders
from recipe_core.train.start.watch import patient, watched
from recipe_core.train.stopping import announcement
from recipe_hf_finetune.data import vocabulary
from recipe_hf_finetune.data.splits import load
from recipe_hf_finetune.model import source as sources
from recipe_hf_finetune.settings import settings
from recipe_hf_finetune.trainer.arguments import prepare_environment

TOKENIZER = "tokenizer"
"""Folder in the run folder for a vocabulary trained by the run."""


def run(job: Job, out: Path) -> dict[str, Any]:
    """Fine-tune, continuing the run in ``out`` if there is one; return the content of results.json."""
    prepare_environment()
    with StopFlag() as stop:
        # Before the process group exists: this may take minutes, and collectives have a timeout.
        source, done = sources.run_first(job.model.config, home(), lambda: stop.signal)
        if not done:
            show(f"{job.name} stopped while it made the model to begin with; the same line goes on from there")
            return {"exit_code": int(ExitCode.STOPPED)}
        stop.mode = StopMode.EXIT  # until a step is done there is nothing to save
        with (
            watched(job.train, out) as watchdog,
            engines.start(patient(job.train), job.engine, job.layout) as engine,
        ):
            straggler_row = watchdog.row if job.train.log_stragglers else dict
            folders.agree(out, job, engine)
            with noting_divergence(out, job, engine.rank):
                # a function, so that all it holds is freed before the engine stops
                return _run(job, out, engine, stop, source, straggler_row)


def _run(
    job: Job, out: Path, engine: engines.Engine, stop: StopFlag, source: str | None, straggler_row: Callable[[], Row]
) -> dict[str, Any]:
    from recipe_hf_finetune.data import encode
    from recipe_hf_finetune.model import classifier
    from recipe_hf_finetune.results.closing import close
    from recipe_hf_finetune.trainer.room import require_room
    from recipe_hf_finetune.trainer.seed_run import fine_tune

    classifier.quiet()
    if engine.rank == 0:
        stop.on_first = lambda name: show(announcement(name))
    with folders.open_run_folder(out, job, engine) as run_folder:
        beat.enter("building model and data")
        shared = _shared(job, out, engine, stop, source, straggler_row)
        identity = identity_of(job.data, encode.texts_of(shared.tokenizer))
        on_rank_0(engine, lambda: run_folder.identify(identity, keep_tokenizer=False), out)  # the checkpoints hold it
        shared = replace(shared, claim=run_folder.restore, identity=run_folder.identity)
        outcomes: list[dict[str, Any]] = []
        seed_runs = _seed_runs(job, out)
        require_room(shared, seed_runs, out)
        for seed_run in seed_runs:
            outcome = None if engine.any(stop.signal is not None) else fine_tune(shared, seed_run)
            if outcome is None:
                break
            outcomes.append(outcome)
        signals = engine.gather(stop.signal) if len(outcomes) < len(seed_runs) else []
        signal = next(filter(None, signals), None)
        if engine.rank == 0:
            return close(shared, out, seed_runs, outcomes, signal)
        return {"exit_code": int(ExitCode.STOPPED if signal else ExitCode.FINISHED)}


def _seed_runs(job: Job, out: Path) -> list[Any]:
    from recipe_hf_finetune.trainer.seed_run import SeedRun

    train = settings(job.train)
    seeds = range(train.seed, train.seed + train.seeds)
    seed_runs = [
        SeedRun(seed, False, out if seed == train.seed else out / f"seed-{seed}", seed == train.seed) for seed in seeds
    ]
    if train.random_start:
        seed_runs += [SeedRun(seed, True, out / f"random-start-{seed}", False) for seed in seeds]
    return seed_runs


def _shared(
    job: Job, out: Path, engine: engines.Engine, stop: StopFlag, source: str | None, straggler_row: Callable[[], Row]
) -> Any:
    from recipe_hf_finetune.data import encode
    from recipe_hf_finetune.model import classifier
    from recipe_hf_finetune.trainer.seed_run import Shared

    config, data, train = job.model.config, job.data.config, job.train
    corpus = load(data, home())
    place = _place(job, out, engine, source)
    hf_config = None if place is None else classifier.load_config(place, config)
    tokenizer = encode.load_tokenizer(_tokenizer(job, out, engine, place), config.revision)
    if hf_config is None:
        hf_config = classifier.random_config(config, len(tokenizer), max(512, data.max_length))
    encode.require_vocabulary(tokenizer, hf_config.vocab_size, place or "random weights")
    if config.tokenizer is not None and place is not None and sources.has_own_tokenizer(place):
        encode.require_same(tokenizer, encode.load_tokenizer(place, config.revision), config, train.accept)
    mesh = None
    if engine.traced:
        mesh = engine.mesh({"dp": engine.world_size})
        hf_config._attn_implementation = "eager"  # others read on the host, for each batch, whether it has padding
    if hf_config.pad_token_id is None:
        hf_config.pad_token_id = tokenizer.pad_token_id
    encoded = {
        split: encode.encode(examples, tokenizer, data.max_length, pad=data.pads(engine.traced))
        for split, examples in corpus.splits.items()
    }
    encoded["validation"] = encoded["validation"].first(train.eval_samples)
    return Shared(
        job=job, engine=engine, side=engine.host_ranks(), stop=stop, corpus=corpus, tokenizer=tokenizer,
        encoded=encoded, place=place, straggler_row=straggler_row, config=partial(copy.deepcopy, hf_config),
        group=None if mesh is None else mesh["dp"].get_group(),
    )  # fmt: skip


def _place(job: Job, out: Path, engine: engines.Engine, source: str | None) -> str | None:
    # For from_pretrained; a checkpoint of another format is converted first.
    if source is None:
        return None
    place = sources.ready(source)
    if place is None:
        on_rank_0(engine, lambda: sources.convert(job.model.config, source, out), out)
        place = str(out / sources.CONVERTED)
    on_rank_0(engine, lambda: sources.require_intact(place), out)
    return place


def _tokenizer(job: Job, out: Path, engine: engines.Engine, place: str | None) -> str:
    config = job.model.config
    if config.tokenizer is not None:
        return str(config.tokenizer)
    if place is not None:
        if not sources.has_tokenizer(place):
            raise ConfigError(
                f"model.source: {config.source}: its checkpoint does not tell which tokenizer it was trained with; "
                "name it: model.tokenizer=FOLDER, with vocab.txt or tokenizer.json in it"
            )
        return place

    def write() -> None:
        if not (out / TOKENIZER).is_dir():
            with atomic_folder(out / TOKENIZER) as part:
                for name, text in vocabulary.files(job.data.config).items():
                    (part / name).write_text(text, encoding="utf-8")

    on_rank_0(engine, write, out)
    return str(out / TOKENIZER)
