"""Checks of a model against its own module: facts, division, initial values, loss, memory, adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core.checkpoint.adapter import Naming, to_foreign, to_native
from recipe_core.checkpoint.lazy import Lazy, lazy, same_bits
from recipe_core.checkpoint.state import weights
from recipe_core.errors import PluginError, RecipeError
from recipe_core.hooks.specs import Model, ModelFacts, load
from recipe_core.hooks.train import Train
from recipe_core.layouts.outputs import output_of, require_outputs
from recipe_core.layouts.parallel import Batch
from recipe_core.layouts.patterns import matching
from recipe_core.layouts.pipeline.stages import cut_stage
from recipe_core.layouts.tensor_parallel.plan import assign
from recipe_core.settings.fill import plain
from recipe_core.settings.job import Job
from recipe_core.testing.activations import kept_bytes
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.samples import first_batch
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.train.start.check.estimate import estimate

_TOLERANCE = 0.1
"""Relative error allowed for the estimate of activations."""
_ANY_LENGTH = 8


def facts_agree(plugin: Plugin, spec: Model) -> str:
    """Check that the facts count the module's parameters and blocks, for its defaults and in all recipes."""
    if not spec.facts:
        raise SkippedCheck("it has no facts, so that `recipe check` estimates nothing")
    configs = list(_configurations(plugin, spec))
    problems = [
        f"{name}: {problem}" for name, config, facts in configs for problem in _wrong_facts(spec, config, facts)
    ]
    if problems:
        raise FailedCheck("; ".join(problems))
    if not configs:
        raise SkippedCheck("it has facts for no settings of an installed recipe, nor for its defaults")
    return f"parameters and blocks of {', '.join(name for name, _, _ in configs)}"


def plan_fits(plugin: Plugin, spec: Model) -> str:
    """Check that every pattern of the tensor plan matches, and that every parameter has a role."""
    if not spec.plan:
        raise SkippedCheck("it has no tensor plan, so that layout=tp refuses it")
    counts = []
    for name, config, facts in _configurations(plugin, spec):
        cuts = assign(_blank(spec, config), spec.structure(config).plan, 1).cuts
        cut_values = sum(parameter.numel() for parameter, cut in cuts.items() if cut.dim is not None)
        if facts.divided_parameters != cut_values:
            raise FailedCheck(
                f"{name}: the plan cuts {cut_values:,} parameters, and divided_parameters is "
                f"{facts.divided_parameters:,}; fix the facts or the plan"
            )
        counts.append(name)
    return f"every parameter has a role in {', '.join(counts)}"


def stages_fit(plugin: Plugin, spec: Model) -> str:
    """Check that the pipeline stages exist and hold all parameters."""
    config = _tiny_or_default(plugin, spec)
    structure = spec.structure(config)
    if structure.stages is None:
        raise SkippedCheck("it names no stages, so that layout=pp refuses it")
    blocks = len(matching(_blank(spec, config), spec.blocks))
    count = min(blocks, 2)
    if not count:
        raise FailedCheck(f"blocks: {spec.blocks!r} matches no submodule, and a pipeline cuts between blocks")
    for index in range(count):
        cut_stage(_blank(spec, config), structure, index, count)
    return f"{blocks} blocks over {count} stages hold all parameters"


def documents_apart(plugin: Plugin, spec: Model) -> str:
    """Check that the second document of a row gets the outputs that it has in a row of its own."""
    if not spec.document_mask:
        raise SkippedCheck("it declares no document_mask, so that datasets of masked documents are refused")
    job = _tiny_job(plugin, spec)
    module = spec.load()(job.model.config)[0].eval()
    batch = {name: tensor for name, tensor in first_batch(job, 1).items() if name in ("tokens", "labels")}
    if "tokens" not in batch:
        raise FailedCheck("document_mask: the batches of its recipe have no tokens, which documents would be of")
    ids = torch.ones_like(batch["tokens"])
    half = ids.shape[1] // 2
    ids[:, half:] = 2
    row = {**batch, "document_ids": ids, "loss_mask": torch.ones_like(ids, dtype=torch.bool)}
    alone = {name: tensor[:, half:] for name, tensor in batch.items()}
    with torch.no_grad():
        found, wanted = (output_of(module(one), (*spec.outputs, "losses")[0]) for one in (row, alone))
    if not torch.allclose(found[:, half:], wanted, rtol=1e-3, atol=1e-4):
        raise FailedCheck(
            "document_mask: the outputs of a document depend on the one before it in the row; restart positions and "
            "attention where `document_ids` of the batch change (recipe_core.ops.documents)"
        )
    return f"{ids.shape[1] - half} tokens after another document"


def initial_values(plugin: Plugin, spec: Model) -> str:
    """Check that ``initial_value`` gives the values of ``build``, so that every layout has the same initial weights."""
    if not spec.deferred:
        raise SkippedCheck("it is built with its values (Model.deferred is false)")
    config = _tiny_or_default(plugin, spec)
    torch.manual_seed(1234)
    whole, blank = _module(spec, config), _blank(spec, config)
    if not callable(getattr(blank, "initial_value", None)):
        raise FailedCheck(f"deferred: {type(blank).__name__} has no method initial_value(name, shape)")
    tensors = dict([*whole.named_parameters(), *whole.named_buffers()])
    for name, tensor in tensors.items():
        value: Tensor = blank.initial_value(name, tensor.shape)  # type: ignore[operator]
        if not same_bits(value.to(tensor.dtype), tensor.detach()):
            raise FailedCheck(
                f"initial_value({name!r}) is not what build() gives; draw both from the seed, the name and the shape"
            )
    return f"{len(tensors)} tensors, bit by bit"


def loss_of_a_batch(plugin: Plugin, spec: Model) -> str:
    """Check that the module takes a micro batch of the dataset and gives the outputs that it declares, and that the
    loss is a dict of scalars."""
    job = _tiny_job(plugin, spec)
    module, loss = spec.load()(job.model.config)
    batch = first_batch(job, job.train.micro_batch)
    output = module(batch)
    try:
        require_outputs(output, spec)
    except PluginError as error:
        raise FailedCheck(str(error)) from error
    values = loss(output, batch)
    if "loss" not in values:
        raise FailedCheck(f"the loss gives {', '.join(values) or 'nothing'}; expected a dict with 'loss'")
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.ndim or not bool(torch.isfinite(value)):
            raise FailedCheck(f"the loss gives {name}={value!r}; expected a finite tensor without dimensions")
    values["loss"].backward()
    lacking = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    if lacking:
        raise FailedCheck(
            f"{', '.join(lacking[:5])} takes no part in the loss, and ddp waits for every gradient; use it, or set "
            "requires_grad to False"
        )
    return ", ".join(values)


def activations(plugin: Plugin, spec: Model) -> str:
    """Check that the estimate of activations is within a tenth of the memory that autograd keeps."""
    job = _tiny_job(plugin, spec)
    facts = job.model_facts()
    if facts is None or job.facts.data is None:
        raise SkippedCheck("model or dataset has no facts")
    notes = []
    for recomputed in (False, True) if spec.blocks else (False,):
        module, loss = spec.load()(job.model.config)
        count = _distinct_count(module, job)
        call = partial(_whole_forward, loss=loss, batch=first_batch(job, count))
        blocks = spec.blocks if recomputed else ""
        kept = kept_bytes(module.train(), call, "fp32", blocks, facts.vocabulary or 0) // 4 // count
        train = Train(micro_batch=count, precision="fp32", activation_checkpointing=recomputed)
        expected = estimate(facts, job.facts.data, train).activations // 4 // count
        if abs(expected - kept) > _TOLERANCE * kept:
            raise FailedCheck(
                f"{'recomputed_' * recomputed}activation_values: {expected:,} for a sample, and autograd keeps "
                f"{kept:,} values of it; `recipe check` would be {abs(expected - kept) / kept:.0%} off"
            )
        notes.append(f"{expected:,} values of {kept:,}{' when recomputed' * recomputed}")
    return ", ".join(notes)


def _distinct_count(module: nn.Module, job: Job) -> int:
    """A batch size for which no activation has the shape of a parameter, which autograd keeps anyway."""
    sizes = {size for parameter in module.parameters() for size in parameter.shape}
    counts = (count for count in (2, 3, 5, 7, 11, 13, 17) if not sizes & {count, count * job.tokens_per_sample()})
    return next(counts, 19)


def adapters(plugin: Plugin, spec: Model) -> str:
    """Check that tensors and settings come back unchanged from each foreign naming."""
    if not spec.adapters:
        raise SkippedCheck("it has no adapters")
    config = _tiny_or_default(plugin, spec)
    tensors_of_model = {name: lazy(tensor) for name, tensor in weights(_module(spec, config)).items()}
    for naming, target in spec.adapters.items():
        foreign: Naming = load(target, f"model {spec.name!r}")()
        adapter = foreign.adapter(config)
        foreign_tensors = to_foreign(adapter, tensors_of_model, ties=True)
        back = to_native(adapter, foreign_tensors, Path(naming))
        if lost := sorted(tensors_of_model.keys() ^ back.keys()):
            raise FailedCheck(f"{naming}: {', '.join(lost[:5])} is lost on the way there and back; add a Link")
        changed = [name for name in tensors_of_model if not same_bits(tensors_of_model[name].read(), back[name].read())]
        if changed:
            raise FailedCheck(f"{naming}: {', '.join(changed[:5])} comes back with other values; fix its Link")
        _require_settings(spec, naming, foreign, foreign_tensors, config)
    return f"{len(tensors_of_model)} tensors to {', '.join(spec.adapters)} and back"


def _require_settings(
    spec: Model, naming: str, foreign: Naming, foreign_tensors: Mapping[str, Lazy], config: Any
) -> None:
    """Check that the settings recorded in the adapter's own files are those of ``config``."""
    shapes = {name: tensor.shape for name, tensor in foreign_tensors.items()}
    recorded = foreign.settings(foreign.adapter(config).files, shapes)
    if recorded is None:
        raise FailedCheck(f"{naming}: settings() does not know the files that adapter() writes for it")
    resolved = load(spec.resolved, f"model {spec.name!r}")(config) if spec.resolved else plain(config)
    if wrong := [name for name, value in recorded.items() if name in resolved and resolved[name] != value]:
        name = wrong[0]
        raise FailedCheck(f"{naming}: {name} is {resolved[name]!r}, and settings() reads {recorded[name]!r}")


def _configurations(plugin: Plugin, spec: Model) -> Iterator[tuple[str, Any, ModelFacts]]:
    """Name, settings and facts of the model, for its defaults and every job; equal settings once."""
    seen, length = [], _ANY_LENGTH
    jobs: list[tuple[str, Any, int]] = []
    for job in plugin.jobs(spec):
        length = _sample_length(job)
        jobs.append((job.name, job.model.config, length))
    for name, config, sequence in [*jobs, ("its defaults", spec.config(), length)]:
        if config in seen:
            continue
        seen.append(config)
        facts = load(spec.facts, f"model {spec.name!r}")(config, sequence) if spec.facts else None
        if facts is not None and _can_be_built(spec, config):
            yield name, config, facts


def _sample_length(job: Job) -> int:
    """Tokens of a sample; an arbitrary length if the data files that determine it are missing."""
    try:
        return job.tokens_per_sample() or _ANY_LENGTH
    except RecipeError:
        return _ANY_LENGTH


def _can_be_built(spec: Model, config: Any) -> bool:
    """False if ``build`` refuses the settings, as it may if they name missing files."""
    try:
        _blank(spec, config)
    except RecipeError:
        return False
    return True


def _wrong_facts(spec: Model, config: Any, facts: ModelFacts) -> Iterator[str]:
    module = _blank(spec, config)
    parameters = sum(p.numel() for p in module.parameters() if p.requires_grad)
    if parameters != facts.parameters:
        yield f"the module has {parameters:,} trainable parameters, and facts say {facts.parameters:,}"
    blocks = matching(module, spec.blocks).values()
    if spec.blocks and not blocks:
        yield f"blocks: {spec.blocks!r} matches no submodule of {type(module).__name__}"
    if facts.blocks != len(blocks) and (spec.blocks or facts.blocks):
        yield f"{spec.blocks!r} matches {len(blocks)} blocks, and facts say {facts.blocks}"
    largest = max((sum(p.numel() for p in block.parameters()) for block in blocks), default=0)
    if largest != facts.block_parameters:
        yield f"the largest block has {largest:,} parameters, and block_parameters is {facts.block_parameters:,}"


def _tiny_job(plugin: Plugin, spec: Model) -> Job:
    """The first installed job of a variant ``tiny`` with the model."""
    for job in plugin.jobs(spec):
        if job.variant == "tiny":
            return job
    raise SkippedCheck("no recipe has it in a variant tiny, so that there is no batch for it")


def _tiny_or_default(plugin: Plugin, spec: Model) -> Any:
    try:
        return _tiny_job(plugin, spec).model.config
    except SkippedCheck:
        return spec.config()


def _module(spec: Model, config: Any) -> nn.Module:
    module: nn.Module = spec.load()(config)[0]
    return module


def _blank(spec: Model, config: Any) -> nn.Module:
    """The module without values.

    Raises:
        FailedCheck: it cannot be built on the meta device.
    """
    try:
        with torch.device("meta"):
            return _module(spec, config)
    except RecipeError:
        raise
    except Exception as error:
        raise FailedCheck(
            f"it cannot be built without values ({type(error).__name__}: {error}); under torch.device('meta') build "
            "must read no value of a tensor"
        ) from error


def _whole_forward(module: nn.Module, loss: Any, batch: Batch) -> Any:
    return loss(module(batch), batch)
