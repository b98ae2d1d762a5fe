"""``recipe run hf_finetune``: prepare model and samples, hand over to the Trainer, report the results.

Launching, run folder, metrics, checkpoints and signals are the core's; training is Hugging Face's.
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
from recipe_core.launch.stop import StopFlag
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.report import show
from recipe_core.train.metrics.results import noting_divergence
from recipe_core.train.start import folder as folders
from recipe_core.train.watch import patient, watched
from recipe_hf_finetune.data import vocabulary
from recipe_hf_finetune.data.splits import load
from recipe_hf_finetune.model import source as sources
from recipe_hf_finetune.settings import settings
from recipe_hf_finetune.trainer.arguments import prepare_environment

TOKENIZER = "tokenizer"
"""Folder of the trained vocabulary in the run folder."""


def run(job: Job, out: Path) -> dict[str, Any]:
    """Fine-tune as ``job`` says, continue what ``out`` holds; return what results.json says."""
    prepare_environment()
    with StopFlag() as stop:
        # Before the ranks meet: it may take minutes, and a collective has a limit.
        source, goes_on = sources.run_first(job.model.config, home(), lambda: stop.signal)
        if not goes_on:
            show(f"{job.name} stopped while it made the model to begin with; the same line goes on from there")
            return {"exit_code": int(ExitCode.STOPPED)}
        stop.obey()  # until a step is done there is nothing to save
        with (
            watched(job.train, out) as watchdog,
            engines.start(patient(job.train), job.engine, job.layout) as engine,
        ):
            pace = watchdog.row if job.train.log_stragglers else dict
            folders.agree(out, job, engine)
            with noting_divergence(out, job, engine.rank):
                return _run(job, out, engine, stop, source, pace)  # a call: all is let go before the engine stops


def _run(
    job: Job, out: Path, engine: engines.Engine, stop: StopFlag, source: str | None, pace: Callable[[], Row]
) -> dict[str, Any]:
    from recipe_hf_finetune.data import encode
    from recipe_hf_finetune.model import classifier
    from recipe_hf_finetune.results.closing import close
    from recipe_hf_finetune.trainer.leg import fine_tune
    from recipe_hf_finetune.trainer.room import require_room

    classifier.quiet()
    with folders.claimed(out, job, engine) as claim:
        beat.enter("building model and data")
        bench = _bench(job, out, engine, stop, source, pace)
        # The checkpoints themselves hold the tokenizer.
        identity = identity_of(job.data, encode.texts_of(bench.tokenizer))
        on_rank_0(engine, lambda: claim.identify(identity, keep_tokenizer=False), out)
        bench = replace(bench, claim=claim.renew, identity=claim.identity)
        outcomes: list[dict[str, Any]] = []
        legs = _legs(job, out)
        require_room(bench, legs, out)
        for leg in legs:
            outcome = None if engine.any(stop.signal is not None) else fine_tune(bench, leg)
            if outcome is None:
                break
            outcomes.append(outcome)
        signals = engine.gather(stop.signal) if len(outcomes) < len(legs) else []
        signal = next(filter(None, signals), None)
        if engine.rank == 0:
            return close(bench, out, legs, outcomes, signal)
        return {"exit_code": int(ExitCode.STOPPED if signal else ExitCode.FINISHED)}


def _legs(job: Job, out: Path) -> list[Any]:
    """The seeds from the trained model, then, if wanted, as many from random weights."""
    from recipe_hf_finetune.trainer.leg import Leg

    train = settings(job.train)
    seeds = range(train.seed, train.seed + train.seeds)
    legs = [Leg(seed, False, out if seed == train.seed else out / f"seed-{seed}", seed == train.seed) for seed in seeds]
    if train.random_start:
        legs += [Leg(seed, True, out / f"random-start-{seed}", False) for seed in seeds]
    return legs


def _bench(
    job: Job, out: Path, engine: engines.Engine, stop: StopFlag, source: str | None, pace: Callable[[], Row]
) -> Any:
    """Model, tokenizer and samples, the same on every rank."""
    from recipe_hf_finetune.data import encode
    from recipe_hf_finetune.model import classifier
    from recipe_hf_finetune.trainer.leg import Bench

    config, data, train = job.model.config, job.data.config, job.train
    corpus = load(data, home())
    place = _place(job, out, engine, source)
    known = None if place is None else classifier.load_config(place, config)
    tokenizer = encode.load_tokenizer(_tokenizer(job, out, engine, place), config.revision)
    if known is None:
        known = classifier.random_config(config, len(tokenizer), max(512, data.max_length))
    encode.require_vocabulary(tokenizer, known.vocab_size, place or "random weights")
    if config.tokenizer is not None and place is not None and sources.has_own_tokenizer(place):
        encode.require_same(tokenizer, encode.load_tokenizer(place, config.revision), config, train.accept)
    mesh = None
    if engine.traced:
        mesh = engine.mesh({"dp": engine.world_size})
        known._attn_implementation = "eager"  # the others ask the host, for each batch, whether there is padding

    if known.pad_token_id is None:
        known.pad_token_id = tokenizer.pad_token_id
    encoded = {
        split: encode.encode(examples, tokenizer, data.max_length, pad=data.pads(engine.traced))
        for split, examples in corpus.splits.items()
    }
    encoded["validation"] = encoded["validation"].first(train.eval_samples)
    return Bench(
        job=job, engine=engine, side=engine.side(), stop=stop, corpus=corpus, tokenizer=tokenizer, encoded=encoded,
        place=place, pace=pace, config=partial(copy.deepcopy, known),
        group=None if mesh is None else mesh["dp"].get_group(),
    )  # fmt: skip


def _place(job: Job, out: Path, engine: engines.Engine, source: str | None) -> str | None:
    """The folder or name of the weights for ``from_pretrained``; a checkpoint of another format is converted first."""
    if source is None:
        return None
    place = sources.ready(source)
    if place is None:
        on_rank_0(engine, lambda: sources.convert(job.model.config, source, out), out)
        place = str(out / sources.CONVERTED)
    on_rank_0(engine, lambda: sources.require_intact(place), out)
    return place


def _tokenizer(job: Job, out: Path, engine: engines.Engine, place: str | None) -> str:
    """The folder or name of the tokenizer; one is trained where there is none."""
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
