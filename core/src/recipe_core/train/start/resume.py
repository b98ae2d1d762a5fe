"""The initial state of a run: from a checkpoint, with the weights of another run, or new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from recipe_core.checkpoint.adapter import matches
from recipe_core.checkpoint.formats.base import CALLBACKS, Format, keep_common_callbacks
from recipe_core.checkpoint.formats.build import build_format
from recipe_core.checkpoint.lazy import entries, fill, fill_state, has_entries
from recipe_core.checkpoint.locate import StoredCheckpoint, find
from recipe_core.checkpoint.manifest import NAME, STEP
from recipe_core.checkpoint.match.mismatch import mismatch
from recipe_core.checkpoint.match.same_model import require_same
from recipe_core.checkpoint.match.transforms import (
    adds_the_same,
    merged,
    recorded_transforms,
    require_same_transforms,
)
from recipe_core.checkpoint.match.translator import Translator
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.checkpoint.state import apply_state, blank_weights, gather_state, load_targets, weights
from recipe_core.data.identity import (
    PHASES,
    differences,
    identity_of,
    names_data,
    recorded_identity,
    require_accepted,
)
from recipe_core.engine.agreement import on_each_rank
from recipe_core.engine.precision import cast
from recipe_core.engine.protocol import HostTransfer
from recipe_core.errors import CheckpointError, ConfigError, RecipeError
from recipe_core.hooks.registry import load
from recipe_core.launch.notice import notice
from recipe_core.layouts.parallel import Parallel
from recipe_core.layouts.transformed import build_transformed
from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job
from recipe_core.settings.sections import without_records
from recipe_core.train.callbacks.callbacks import Callbacks
from recipe_core.train.optim import Trainable

SHOWN = 5
"""Names that a message lists; further ones are counted."""


@dataclass
class TrainingProgress:
    """Steps and samples done so far. With the seed, it determines the order of data and all dropout."""

    step: int = 0
    consumed_samples: int = 0

    def advance(self, samples: int) -> None:
        """Count one optimizer step."""
        self.step += 1
        self.consumed_samples += samples

    def state(self) -> dict[str, int]:
        """Plain values for a checkpoint."""
        return asdict(self)

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from what :meth:`state` returned."""
        self.step, self.consumed_samples = state["step"], state["consumed_samples"]


def training_state(
    model: Parallel, optimizer: torch.optim.Optimizer, progress: TrainingProgress, callbacks: Callbacks
) -> dict[str, Any]:
    """The contents of a checkpoint: weights, optimizer states, progress, and states of callbacks, if there are any; a
    collective."""
    state = {**gather_state(model.module, optimizer), "progress": progress.state()}
    if states := callbacks.state():
        state[CALLBACKS] = states
    return model.with_placeholders(state)


def begin(
    job: Job, transfer: HostTransfer, checkpoints: Checkpoints, model: Parallel, optimizer: torch.optim.Optimizer,
    progress: TrainingProgress, callbacks: Callbacks, identity: Mapping[str, Any],
) -> str:  # fmt: skip
    """Load the checkpoint that ``train.resume`` or ``train.init_from`` names, and describe it for the log; a
    collective.

    ``identity`` is the record of the run's data, on rank 0.

    Raises:
        ConfigError: the checkpoint was trained on other data, in another order or with another tokenizer, or has taken
            all steps.
        ConfigError: ``train.resume`` is none in a folder with checkpoints, or a required ``train.init_from`` is not
            given.
        CheckpointError: the named checkpoint does not exist, is not whole, or does not fit.
    """
    if (step := job.train.resume_step) is not None:
        checkpoints.return_to(step)
    path = checkpoints.newest()
    if job.train.resume == "none" and path is not None:
        raise ConfigError(f"train.resume: none, and {path} is there to go on from; give another --out, or remove it")
    if path is None and job.train.resume_path is None:
        return "" if job.train.init_from is None else _load_weights(job, checkpoints, model, optimizer, identity)
    state = load_targets(training_state(model, optimizer, progress, callbacks), transfer.load_target)
    stateful = list(state.get(CALLBACKS, ()))
    notes: list[str] = []
    if path is not None:
        notice(f"loading {path}")
        checkpoints.load(path, state)
    else:
        notes = _load_named(job, checkpoints, Path(job.train.resume), state, identity)
    apply_state(model.module, optimizer, model.local_state({part: state[part] for part in ("model", "optimizer")}))
    callbacks.load_state(loaded := state.get(CALLBACKS, {}))
    notes += [
        f"callback {name} begins now: the checkpoint has no state of it" for name in stateful if name not in loaded
    ]
    progress.restore(_with_samples(state["progress"], job.train.global_batch))
    if path is None and progress.step >= job.train.steps:
        raise ConfigError(
            f"train.resume: {job.train.resume} has taken {progress.step:,} steps, and train.steps={job.train.steps} "
            "asks for no more; raise train.steps"
        )
    line = f"continuing after step {progress.step:,}"
    again = "" if job.train.init_from is None else "; train.init_from is not read again"
    return "\n".join([line + again, *notes])


def start_problems(job: Job) -> list[str]:
    """Problems that :func:`begin` would raise for the checkpoint of a new run, found in one process.

    Names, shapes and recorded settings are compared; no values are read.
    """
    try:
        if job.train.resume_path is not None:
            source = find(load(), Path(job.train.resume_path), hashes=False)
            # first: a model is the larger mistake
            require_same(job.model, source, _stored_texts(source), "train.resume")
            _require_same_order(job, source, _named_identity(job))
            form = build_format(job.checkpoint)
            _matching_state(source, job, _blank_state(job), dtypes=_has_dtypes_of_run(source, form))
        elif job.train.init_from is not None:
            source = find(load(), Path(job.train.init_from), hashes=False)
            require_same(job.model, source, _stored_texts(source), "train.init_from")
            _require_same_tokenizer(job, source, _named_identity(job))
            _matching_weights(job, source, blank_weights(job.model, job.transforms))
    except RecipeError as error:
        return [str(error)]
    return []


def _named_identity(job: Job) -> Mapping[str, Any]:
    # empty for embedded data, which a check does not prepare
    return identity_of(job.data).record if names_data(job.data.config) else {}


def _blank_state(job: Job) -> dict[str, Any]:
    with torch.device("meta"):
        module, _ = build_transformed(job.model, job.transforms)
    module = cast(module, job.train.precision)
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    trainable = Trainable(named=named, train=job.train, structure=job.structure())
    return {
        **gather_state(module, job.optimizer.build(job.optimizer.config, trainable)),
        "progress": {"step": 0, "consumed_samples": 0},
    }


def _load_named(
    job: Job, checkpoints: Checkpoints, path: Path, state: dict[str, Any], identity: Mapping[str, Any]
) -> list[str]:
    """Fill ``state`` from another run's checkpoint, of any format; return lines for the log."""
    native = (path / NAME).is_file() or STEP.fullmatch(path.name) or not path.exists()
    if native and (problems := checkpoints.problems(path)):
        raise CheckpointError(f"train.resume: {path} is not a whole checkpoint: {'; '.join(problems)}")
    # Of several in a run folder, all ranks take the one that is whole. Native hashes were compared above.
    source = checkpoints.on_rank_0(lambda: find(load(), path, hashes=not native))
    checkpoints.on_rank_0(lambda: require_same(job.model, source, _stored_texts(source), "train.resume"))
    checkpoints.on_rank_0(lambda: _require_same_order(job, source, identity))
    strict = _has_dtypes_of_run(source, checkpoints.format)
    return on_each_rank(checkpoints.engine, lambda: _fill(source, job, state, dtypes=strict), source.path)


def _has_dtypes_of_run(source: StoredCheckpoint, form: Format) -> bool:
    # Checkpoints of other formats are converted to the run's dtypes.
    return form.strict_dtypes and source.format.name == form.name


def _stored_texts(source: StoredCheckpoint) -> Mapping[str, str]:
    # only of formats with a foreign naming
    texts: Mapping[str, str] = source.open(weights=True).get("files", {}) if source.format.naming else {}
    return texts


def _fill(source: StoredCheckpoint, job: Job, state: dict[str, Any], *, dtypes: bool) -> list[str]:
    saved, notes = _matching_state(source, job, state, dtypes=dtypes)
    fill_state({part: value for part, value in state.items() if part != "progress"}, saved)
    state["progress"] = dict(saved["progress"])
    return notes


def _matching_state(
    source: StoredCheckpoint, job: Job, state: dict[str, Any], *, dtypes: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The parts of ``state`` that ``source`` holds, checked against it, and lines for the log.

    With ``dtypes``, dtypes must agree too.
    """
    translator, opened = Translator(job.model), source.open()
    note = require_same(job.model, source, opened.get("files", {}), "train.resume")
    require_same_transforms(job.transforms, source, load())
    saved = translator.to_native(opened, source.format, source.path)
    keep_common_callbacks(saved, state)
    missing = [part for part in state if part not in saved and has_entries(state[part])]
    if missing:
        raise CheckpointError(
            f"train.resume: {source.path} holds no {' and no '.join(missing)}; a new run can begin with its weights: "
            f"train.init_from={source.path}"
        )
    saved = {part: saved[part] for part in state if part in saved}  # other parts (texts, an epoch) are for scripts
    if text := mismatch(dict(entries(saved)), dict(entries(state)), dtypes=dtypes):
        raise CheckpointError(f"train.resume: {source.path} {text}")
    return saved, _notes(source, note, translator.left_out(opened, source.format, source.path))


def _notes(source: StoredCheckpoint, note: str, left_out: list[str]) -> list[str]:
    unchecked = [f"not checked: {text}"] if (text := source.unchecked()) else []
    return [*(f"not taken: {text}" for text in left_out), *([note] if note else []), *unchecked]


def _require_same_order(job: Job, source: StoredCheckpoint, identity: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose count of samples is a position in other data, or in another order.

    A checkpoint without job.yaml passes.

    Raises:
        CheckpointError: it has states of another optimizer.
        ConfigError: data, tokenizer, order, seed or batch differ, and ``train.accept`` does not accept it.
    """
    recorded = recorded_identity(source.job)
    before, now = dict(flat(without_records(source.job))), dict(flat(without_records(job.as_dict())))
    if (optimizer := before.get("train.optimizer", job.train.optimizer)) != job.train.optimizer:
        raise CheckpointError(
            f"train.resume: {source.path} has states of the optimizer {optimizer}, and this run has "
            f"{job.train.optimizer}; take the weights alone: train.init_from={source.path}"
        )
    names = ["train.seed", "train.global_batch"]
    if "order" not in recorded or "order" not in identity:  # only the settings determine the order
        names += [name for name in before.keys() & now.keys() if name.startswith("data.")]
    has_phases = PHASES in recorded or PHASES in identity
    consumed = consumed_samples(source, job.train.global_batch) if has_phases else None
    differing = differences(recorded, identity, consumed=consumed) + [
        f"{name}: {before[name]} was recorded, now {now[name]}"
        for name in sorted(names)
        if name in before and before[name] != now[name]
    ]
    head = f"train.resume: {source.path} was trained on other data, or in another order"
    advice = (
        f"Give the data and the settings that it was trained with, or take its weights: train.init_from={source.path}"
    )
    require_accepted(differing, job.train.accept, head, advice, "train.accept=")


def _require_same_tokenizer(job: Job, source: StoredCheckpoint, identity: Mapping[str, Any]) -> None:
    """Refuse weights of another tokenizer than that of the data, if both are known.

    Raises:
        ConfigError: they differ, and ``train.accept`` does not accept it.
    """
    differing = differences(recorded_identity(source.job), identity, ["tokenizer"])
    head = f"train.init_from: {source.path} was trained with another tokenizer than the one of data.files"
    require_accepted(differing, job.train.accept, head, "Prepare the data with its tokenizer", "train.accept=")


def _load_weights(
    job: Job, checkpoints: Checkpoints, model: Parallel, optimizer: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> str:
    # weights only, from any format
    if job.train.init_from == "required" or job.train.init_from is None:
        raise ConfigError("train.init_from: required, and nothing is named; give a run folder or a checkpoint")
    path = Path(job.train.init_from)
    # Rank 0 alone reads and verifies every byte; no rank loads a damaged file.
    source = checkpoints.on_rank_0(lambda: find(load(), path))
    checkpoints.on_rank_0(lambda: require_same(job.model, source, _stored_texts(source), "train.init_from"))
    checkpoints.on_rank_0(lambda: _require_same_tokenizer(job, source, identity))
    wanted = model.with_placeholders(weights(model.module))
    masters = _masters(model, optimizer) if job.train.optimizer_states == "master" else {}
    drawn, notes = on_each_rank(checkpoints.engine, lambda: _fill_weights(job, source, wanted, masters), source.path)
    line = f"weights of {source.path} ({source.format.name}); optimizer, schedule and data begin anew"
    if drawn:
        more = f" and {len(drawn) - SHOWN:,} more" if len(drawn) > SHOWN else ""
        line += f"\nnot in it, and drawn at random: {', '.join(drawn[:SHOWN])}{more}"
    return "\n".join([line, *notes])


def _masters(model: Parallel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    # Created before loading, so that the source fills them: copies at the first step would come from bf16 weights.
    states = model.with_placeholders(gather_state(model.module, optimizer))["optimizer"]["state"]
    return {name: moments["master"] for name, moments in states.items() if "master" in moments}


def _fill_weights(
    job: Job, source: StoredCheckpoint, wanted: dict[str, Any], masters: Mapping[str, torch.Tensor]
) -> tuple[list[str], list[str]]:
    """Fill ``wanted`` and their fp32 masters.

    Returns:
        The optional names that the source lacks, and lines for the log.
    """
    saved, drawn, notes = _matching_weights(job, source, wanted)
    for name, tensor in wanted.items():
        if name not in drawn:
            fill(tensor, saved[name])
            if name in masters:
                fill(masters[name], saved[name])
    return drawn, notes


def _matching_weights(
    job: Job, source: StoredCheckpoint, wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The weights in ``source``, checked against ``wanted``.

    Returns:
        The weights, the optional names that the source lacks, and lines for the log.
    """
    translator, naming = Translator(job.model), source.format.naming
    opened = source.open(weights=True)
    note = require_same(job.model, source, opened.get("files", {}), "train.init_from")
    saved, notes = (
        translator.weights(source, opened),
        _notes(source, note, translator.left_out(opened, source.format, source.path)),
    )
    recorded = recorded_transforms(load(), source.job, source.folder)
    if not adds_the_same(job.transforms, recorded):
        saved = merged(recorded, saved)
        notes += [f"merged into its weights: {part.spec.name}" for part in recorded if part.spec.merge]
    optional = translator.adapter(naming, source.path).optional if naming else ()
    if job.transforms:  # a checkpoint of the model alone lacks what they add
        optional = (*optional, *(wanted.keys() - blank_weights(job.model).keys()))
    drawn = [name for name in wanted if name not in saved and matches(name, optional)]
    rest = {name: tensor for name, tensor in wanted.items() if name not in drawn}
    advice = "Give the model the sizes that it was trained with (model.*), or begin with other weights"
    if text := mismatch(saved, rest, advice, dtypes=False):
        raise CheckpointError(f"train.init_from: {source.path} {text}")
    return saved, drawn, notes


def consumed_samples(source: StoredCheckpoint, global_batch: int) -> int:
    """Return the number of training samples that the run had read at a checkpoint; 0 if it does not say."""
    return _with_samples({"step": 0, **source.weights.get("progress", {})}, global_batch)["consumed_samples"]


def _with_samples(progress: Mapping[str, Any], global_batch: int) -> dict[str, int]:
    # Checkpoints of other formats may count steps only.
    step, samples = int(progress["step"]), progress.get("consumed_samples")
    return {"step": step, "consumed_samples": step * global_batch if samples is None else int(samples)}
