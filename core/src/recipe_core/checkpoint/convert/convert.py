"""``recipe convert``: convert a checkpoint to another format, tensor by tensor, and verify the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import torch
import yaml

from recipe_core.checkpoint.adapter import Adapter
from recipe_core.checkpoint.convert.card import with_export_files
from recipe_core.checkpoint.convert.outputs import same_outputs
from recipe_core.checkpoint.formats.base import CALLBACKS, SaveContext
from recipe_core.checkpoint.formats.build import as_format_error, build_format
from recipe_core.checkpoint.lazy import Lazy, same_values
from recipe_core.checkpoint.locate import Request, StoredCheckpoint, find
from recipe_core.checkpoint.manifest import Manifest
from recipe_core.checkpoint.match.mismatch import mismatch
from recipe_core.checkpoint.match.provenance import Provenance, provenance_of
from recipe_core.checkpoint.match.same_model import require_consistent
from recipe_core.checkpoint.match.transforms import merged, without_transforms
from recipe_core.checkpoint.match.translator import Translator
from recipe_core.checkpoint.state import blank_weights, state_size
from recipe_core.errors import CheckpointError, ConfigError
from recipe_core.files import atomic_folder, require_space
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import CheckpointFormat
from recipe_core.hooks.target import call
from recipe_core.settings.fill import flat

State = dict[str, Any]
T = TypeVar("T")


def convert(registry: Registry, request: Request) -> list[tuple[str, str]]:
    """Convert the checkpoint and return a report as rows of name and text.

    Tensors are renamed to the module's names and written by the target format, one at a time. The result is then opened
    and every tensor is compared with the source, bit by bit; only then does the folder get its final name.

    Raises:
        CheckpointError: the source is damaged or of another model, or the target cannot hold what is in it.
        DiskError: the disk is full, or the folder cannot be written.
    """
    source = _find_source(registry, request)
    opened = source.open(weights=request.drop_optimizer)
    provenance = provenance_of(registry, source, opened, request.recipe)
    if provenance.model is not None:
        origin = f"--recipe {request.recipe}" if request.recipe else "its job.yaml"
        require_consistent(provenance.model, source, opened.get("files", {}), origin)
    translator = provenance.translator
    native = translator.to_native(opened, source.format, source.path)
    if request.weights_of is not None:
        native = _with_weights_of(request.weights_of, native, source.path)
    _require_known(native, provenance, source.path)
    target = request.to.spec
    adds = [part.spec.name for part in provenance.transforms if part.spec.merge]
    merges = adds if target.naming and not target.adapters_only else []
    if target.adapters_only:
        native, translator = _adapters(native, provenance, target, source.path)
    elif merges:
        native, provenance = _merged(native, provenance, request, source.path)
    _require_model_of(target, provenance, source.path)
    if "epoch" in target.holds:
        native.setdefault("epoch", provenance.epoch(native.get("progress", {})))
    converted = _convertible(native, target, request.drop_optimizer)
    step = source.manifest.step if source.manifest else int(native.get("progress", {}).get("step") or 0)
    require_space(request.target.parent, state_size(converted), "the converted checkpoint")
    with atomic_folder(request.target) as part:
        ran = _write(part, request, source, provenance, translator, converted, step)
    left = [*source.passed_over, *translator.left_out(opened, source.format, source.path)]
    report = _report(request, source, provenance, native, converted, step, ran, left)
    if merges:
        report.insert(2, ("merged", f"{', '.join(merges)}, into the weights, in fp32"))
    return report


def _find_source(registry: Registry, request: Request) -> StoredCheckpoint:
    if request.target.exists():
        raise ConfigError(f"{request.target} is there already; give the name of a new folder")
    source = find(registry, request.source, request.format)
    if source.path.is_dir() and source.path.resolve() in request.target.resolve().parents:
        raise ConfigError(f"{request.target} is inside of the checkpoint {source.path}; name a folder elsewhere")
    return source


def _require_model_of(target: CheckpointFormat, provenance: Provenance, where: Path) -> None:
    if target.model and (provenance.model is None or provenance.model.spec.name != target.model):
        actual = f"model {provenance.model.spec.name}" if provenance.model else "a model that it does not name"
        raise CheckpointError(f"{where}: {target.name} is for {target.model} alone, and this is {actual}")


def _write(
    part: Path, request: Request, source: StoredCheckpoint, provenance: Provenance, translator: Translator,
    converted: State, step: int,
) -> bool:  # fmt: skip
    """Write the files and compare them with ``converted``; True if the models' outputs were compared, too."""
    target, form = request.to.spec, build_format(request.to)
    whole = {"progress": {"step": step}, **converted}
    if target.naming and not target.ranks and not target.adapters_only:
        whole["files"] = {**provenance.tokenizer(), **whole.get("files", {})}
    foreign = translator.to_foreign(whole, target, source.path, form.grid)
    if target.name == "hf":
        foreign["files"] = with_export_files(foreign.get("files", {}), source, provenance, step)
    with as_format_error(form, "save"):
        form.save(part, foreign, SaveContext(train=provenance.train, rate=provenance.rate))
    if not target.adapters_only:
        _write_settings(part, provenance)
    val_loss = source.manifest.val_loss if source.manifest and request.weights_of is None else None
    of = partial(Manifest.of, part, format=target.name, step=step, torch=torch.__version__, val_loss=val_loss)
    with _in_background(lambda check: of(check=check)) as manifest:
        written = translator.to_native(form.open(part), target, part)
        _compare(converted, written, target)
        model = None if target.adapters_only else provenance.model
        ran = model is not None and same_outputs(model, converted["model"], written["model"], provenance.transforms)
    manifest.result().write(part)
    return ran


def _with_weights_of(callback: str, native: State, where: Path) -> State:
    """``native`` with the weights in the state of a callback, in the dtypes of the model's, and without callbacks."""
    states = native.get(CALLBACKS, {})
    kept = {name: state["weights"] for name, state in states.items() if isinstance(state.get("weights"), dict)}
    if callback not in kept:
        known = ", ".join(kept) or "none"
        raise CheckpointError(
            f"{where}: it has no weights of a callback {callback!r} (callbacks with weights: {known})"
        )
    own: Mapping[str, Lazy] = native["model"]
    replaced = {name: _cast(weights, own[name].dtype) for name, weights in kept[callback].items() if name in own}
    return {**{part: value for part, value in native.items() if part != CALLBACKS}, "model": {**own, **replaced}}


def _merged(native: State, provenance: Provenance, request: Request, where: Path) -> tuple[State, Provenance]:
    """``native`` with its transforms merged into the weights of the model alone, and the provenance of these.

    Raises:
        CheckpointError: the optimizer, which has states of adapters, is to be converted, too.
    """
    if not request.drop_optimizer and "optimizer" in request.to.spec.holds:
        raise CheckpointError(
            f"{where}: {request.to.spec.name} has no place for the optimizer's states of adapters; to convert the "
            "weights alone, add --drop optimizer"
        )
    weights = merged(provenance.transforms, native["model"])
    return {**native, "model": weights}, replace(
        provenance, transforms=(), sections=without_transforms(provenance.sections)
    )


def _adapters(native: State, provenance: Provenance, target: CheckpointFormat, where: Path) -> tuple[State, Translator]:
    """``native`` with nothing but what the model's transform adds, and the names of that in ``target``.

    Raises:
        CheckpointError: no transform, or more than one, adds weights, or ``target`` cannot hold them.
    """
    adding = [part for part in provenance.transforms if part.spec.merge]
    able = [part for part in adding if target.name in part.spec.exports]
    if len(adding) != 1 or not able:
        names = ", ".join(part.spec.name for part in adding) or "none"
        raise CheckpointError(
            f"{where}: {target.name} holds the adapters of one transform that can be converted to it, and this model's "
            f"transforms with weights are: {names}; to convert the model itself: --to hf"
        )
    spec, translator = able[0].spec, provenance.translator
    adapter = translator.adapter(target.naming, where)
    own: Adapter = call(spec.exports[target.name], f"transform {spec.name!r}", able[0].config, native["model"], adapter)
    added = {name: native["model"][name] for link in own.links for name in link.ours}
    return {**native, "model": added}, replace(translator, own=own)


def _cast(tensor: Lazy, dtype: torch.dtype) -> Lazy:
    return tensor if tensor.dtype == dtype else Lazy(tensor.shape, dtype, lambda: tensor.read().to(dtype))


def _require_known(native: State, provenance: Provenance, where: Path) -> None:
    if provenance.model is None:
        return
    expected = blank_weights(provenance.model, provenance.transforms)
    advice = f"Give the right model: --recipe NAME[:VARIANT] (now: {provenance.model.spec.name})"
    if text := mismatch(native["model"], expected, advice, dtypes=False):
        raise CheckpointError(f"{where}: {text.replace('this run', 'the model', 1)}")


def _convertible(native: State, target: CheckpointFormat, drop_optimizer: bool) -> State:
    wanted = {name: part for name, part in native.items() if name != "files" or "files" in target.holds}
    if drop_optimizer:
        wanted.pop("optimizer", None)
    lost = {name: wanted.pop(name) for name in list(wanted) if name not in target.holds}
    if "optimizer" in lost:
        tensors = [leaf for _, leaf in flat(lost["optimizer"]) if isinstance(leaf, Lazy)]
        size = sum(tensor.nbytes for tensor in tensors)
        raise CheckpointError(
            f"{target.name} holds no optimizer: its {len(tensors):,} tensors ({size / 1e6:,.1f} MB) would be lost, and "
            "with them the position in schedule and data. To convert the weights alone, add --drop optimizer"
        )
    return wanted


def _write_settings(part: Path, provenance: Provenance) -> None:
    if provenance.sections:
        text = yaml.safe_dump(dict(provenance.sections), sort_keys=False, allow_unicode=True, width=120)
        (part / "job.yaml").write_text(text, encoding="utf-8")


@contextmanager
def _in_background(work: Callable[[Callable[[], None]], T]) -> Iterator[Future[T]]:
    """Do ``work(check)`` in a thread beside the block, and wait for it; ``check`` ends it if the block has failed."""
    failed = Event()

    def check() -> None:
        if failed.is_set():
            raise CancelledError

    with ThreadPoolExecutor(1, "background") as pool:
        future = pool.submit(work, check)
        try:
            yield future
        except BaseException:
            failed.set()
            raise


def _compare(converted: State, written: State, target: CheckpointFormat) -> None:
    parts = [name for name in converted if name in target.holds and name != "files"]
    before, after = (
        {key: leaf for name in parts for key, leaf in flat({name: s.get(name, {})})} for s in (converted, written)
    )
    if text := mismatch(after, before, "This is a mistake in the format or the adapter; please report it"):
        raise CheckpointError(f"the checkpoint that was written {text}. It was removed")
    changed = [name for name, leaf in before.items() if not _equal(leaf, after[name])]
    if changed:
        raise CheckpointError(
            f"{len(changed):,} entries came back with other values than were written: {', '.join(changed[:10])}. The "
            "converted checkpoint was removed; check the disk"
        )


def _equal(a: Any, b: Any) -> bool:
    return same_values(a, b) if isinstance(a, Lazy) else bool(a == b)


def _report(
    request: Request,
    source: StoredCheckpoint,
    provenance: Provenance,
    native: State,
    converted: State,
    step: int,
    ran: bool,
    passed_over: Iterable[str],
) -> list[tuple[str, str]]:
    rows = [
        ("from", f"{source.path} ({source.format.name}, step {step:,})"),
        (
            "to",
            f"{request.target} ({request.to.spec.name}: {', '.join(sorted(p.name for p in request.target.iterdir()))})",
        ),
    ]
    if provenance.guessed:
        rows.append(("model", provenance.guessed))
    if request.weights_of is not None:
        rows.append(("weights", f"those that the callback {request.weights_of} kept"))
    for name, part in converted.items():
        tensors = [leaf for _, leaf in flat({name: part}) if isinstance(leaf, Lazy)]
        if tensors:
            rows.append((name, f"{len(tensors):,} tensors, {sum(t.nbytes for t in tensors) / 1e6:,.1f} MB"))
    if (
        "optimizer" in request.to.spec.holds
        and not request.drop_optimizer
        and not list(flat(native.get("optimizer", {})))
    ):
        rows.append(("optimizer", "the source has no optimizer states"))
    if left := [name for name in native if name not in converted and name != "files"]:
        rows.append(("left out", ", ".join(left)))
    rows += [("passed over", text) for text in passed_over]
    own = {"tokenizer.json", "vocab.txt", "vocab.json"} & native.get("files", {}).keys()
    if request.to.spec.naming and not own and (reason := provenance.missing_tokenizer()):
        rows.append(("no tokenizer", reason))
    if unchecked := source.unchecked():
        rows.append(("not checked", unchecked))
    same = ", and the model gives the same outputs with them" if ran else ""
    rows.append(("checked", f"every tensor was read back and has the bits of the source{same}"))
    return rows
