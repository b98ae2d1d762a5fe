"""Contributions of a plugin, as small frozen dataclasses. Nothing here imports torch.

A contribution has a name, a settings class and the target of its code ("package.module:function"), which is imported
only by a run that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar

from recipe_core.errors import PluginError
from recipe_core.hooks.facts import DataFacts as DataFacts  # plugins may import them from here
from recipe_core.hooks.facts import DataIdentity as DataIdentity
from recipe_core.hooks.facts import IndexFacts as IndexFacts
from recipe_core.hooks.facts import ModelFacts as ModelFacts
from recipe_core.hooks.specs.structure import Division as Division
from recipe_core.hooks.specs.structure import Stages as Stages
from recipe_core.hooks.specs.structure import Structure as Structure
from recipe_core.hooks.target import call, called
from recipe_core.hooks.target import load as load  # which most of the core imports from here
from recipe_core.hooks.train import Train

CORE_LOOP = "recipe_core.train.run:run"
"""The core's own loop, as a recipe names it."""
Reduction = Literal["mean", "sum", "max", "count"]
"""How a metric of several micro batches and ranks becomes one number, see :attr:`Model.metrics`."""
COLUMNS = (
    "step", "consumed_samples", "lr", "grad_norm", "seconds", "samples_per_second", "sequences_per_second",
    "tokens_per_second", "flops_per_second", "mfu", "peak_memory",
)  # fmt: skip
"""Columns of metrics.jsonl that the core measures: no loss may return them."""


@dataclass(frozen=True)
class NoSettings:
    """The settings of a contribution that has none."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A named contribution: its settings (a frozen dataclass) and the target of its code."""

    name: str
    """Name in recipes and on the command line."""
    build: str = field(metadata=called("config"))
    """``package.module:function``, imported only when a run needs it."""
    config: type = NoSettings
    """Frozen dataclass of settings; its defaults must be usable. ``__post_init__`` may raise a ValueError with a line
    for every problem, each starting with the name of a setting: ``hidden: expected at least 1, got 0``."""
    summary: str = ""
    """One line for ``recipe ls``."""

    def load(self) -> Callable[..., Any]:
        """Import and return the function that ``build`` names."""
        return load(self.build, f"{type(self).__name__} {self.name!r}")


S = TypeVar("S", bound=Spec, covariant=True)


@dataclass(frozen=True)
class Part(Generic[S]):
    """A contribution selected by name, with checked settings."""

    spec: S
    config: Any
    """Instance of ``spec.config``."""
    wrappers: tuple[Part[Any], ...] = ()
    """Of a dataset: the data wrappers around it, from the inside out."""

    def section(self) -> dict[str, Any]:
        """Return the section of settings that names this part."""
        settings = {setting.name: getattr(self.config, setting.name) for setting in fields(self.config) if setting.init}
        wrappers = {"wrappers": [wrapper.spec.name for wrapper in self.wrappers]} if self.wrappers else {}
        return {"use": self.spec.name, **wrappers, **settings}

    def build(self, *args: Any) -> Any:
        """Import the contribution's code and call it."""
        return self.spec.load()(*args)


@dataclass(frozen=True, kw_only=True)
class Model(Spec):
    """``build(config) -> (module, loss)``.

    ``module(batch)`` takes a micro batch (``dict`` of tensors, first dimension: sample) and returns an output;
    ``loss(output, batch)`` turns that into a ``dict`` of scalar tensors: ``"loss"`` is what is minimised, a mean over
    the micro batch; the others are logged beside it, see ``metrics``.
    """

    facts: str = field(default="", metadata=called("config", "sequence"))
    """``package.module:function(config, sequence) -> ModelFacts``, without torch; it may
    return None where the settings are not enough."""
    blocks: str = ""
    """Pattern (``"blocks.*"``) of the submodules that activation checkpointing recomputes, and fully sharded layouts
    gather, one by one."""
    plan: str = field(default="", metadata=called("config"))
    """``package.module:function(config) -> Mapping[str, str]``, without torch: the tensor plan, which names a role for
    patterns of submodules: ``column``, ``row``, ``vocabulary_in``, ``vocabulary_out``, ``sequence``, ``replicated``,
    ``whole`` or ``split``, see :mod:`recipe_core.layouts.tensor_parallel.roles`. Every parameter needs one. ``split``,
    ``sequence`` and ``replicated`` may name the inputs of the residual stream: ``split(hidden, memory)``."""
    sequence_parallel: bool = True
    """False: the plan is for tensor parallelism alone, with the whole sequence on every rank, as where a block mixes
    positions outside of its ``split`` modules. ``layout.sequence_parallel=true`` is then refused before the run."""
    document_mask: bool = False
    """Where a batch has ``document_ids``, the model keeps the documents of a row apart, as
    :mod:`recipe_core.ops.documents` says. False: a dataset with :attr:`DataFacts.document_mask` is refused before the
    run."""
    stages: Stages | str | None = field(default=None, metadata=called("config"))
    """Stages of a pipeline, or ``package.module:function(config) -> Stages | None``, without torch, where they follow
    from the settings; None: the model cannot be cut so."""
    metrics: Mapping[str, Reduction] = field(default_factory=dict)
    """How what the loss returns becomes one number of a step, over micro batches and ranks: ``mean`` (all that are not
    named), ``sum``, ``max``, or ``count``: an exact whole number that is added up over all steps between two lines of
    the log and shown as a speed (``real_tokens`` as ``real_tokens_per_second``). ``real_tokens`` and ``sequences`` are
    counts unless the model says otherwise. An evaluation has no counts."""
    deferred: bool = False
    """Under ``torch.device("meta")``, ``build`` returns a module without values, whose method ``initial_value(name,
    shape)`` returns the value of each parameter and buffer; layouts that divide the model then never hold all of it."""
    blank: str = field(default="", metadata=called("config"))
    """``package.module:function(config) -> torch.nn.Module``, of a model that its recipe loads itself: the module on
    the meta device, for conversions and for the facts of transforms. Empty: what ``build`` returns there."""

    free: tuple[str, ...] = ()
    """Settings that do not change the function that the model computes, such as dropout and how it is initialised. All
    others must equal those that a checkpoint records of its model, if a run starts or continues from it."""
    resolved: str = field(default="", metadata=called("config"))
    """``package.module:function(config) -> Mapping[str, Any]``, without torch: the settings for that comparison,
    with derived ones filled in. Empty: the settings as they are."""
    takes: tuple[str, ...] = ()
    """Names of the tensors that a training micro batch must have; a dataset that gives others (``gives``) is refused
    before the run. Empty: not checked."""
    outputs: tuple[str, ...] = ()
    """Names of what the module's output holds in training, for losses of other plugins: keys of a mapping, fields of a
    dataclass or a named tuple, the elements of a tuple in order, or one name for a tensor. A loss that needs others
    (:attr:`recipe_core.LossSpec.needs`) is refused before the run. Empty: not known."""
    example: str = field(default="", metadata=called("config"))
    """``package.module:function(config) -> dict``: a micro batch of a few samples, always the same. A conversion runs
    small models on it with the weights before and after."""
    generate: str = field(default="", metadata=called("trained", "options"))
    """``package.module:function(trained, options) -> answer``, for ``recipe generate``: with a
    :class:`recipe_core.TrainedModel` and a :class:`recipe_core.Generation` it returns a function ``answer(prompt) ->
    dict``, whose ``"shown"`` is the text for the terminal; the other entries, plain data, make a line of ``--json``."""
    evaluate: str = field(default="", metadata=called("trained", "options"))
    """``package.module:function(trained, options) -> dict``, for ``recipe eval``: numbers by name, for a
    :class:`recipe_core.TrainedModel` and the data of a :class:`recipe_core.Evaluation`. Empty: the mean of what the
    loss returns over the validation samples of the dataset, as in training."""
    score: str = field(default="", metadata=called("trained", "options"))
    """``package.module:function(trained, options) -> Scorer``, for ``recipe eval --tasks`` and evaluations in a run: a
    :class:`recipe_core.Scorer` of a :class:`recipe_core.TrainedModel`, for an :class:`recipe_core.Evaluation`. Its
    ``logits`` call ``trained.module(batch)`` as a whole. Empty: the model takes no tasks."""
    adapters: Mapping[str, str] = field(default_factory=dict, metadata=called())
    """Adapters for checkpoints of other projects: for each naming (``"hf"``: Hugging Face's) the
    ``package.module:class`` of a :class:`recipe_core.checkpoint.adapter.Naming`."""

    def structure(self, config: Any) -> Structure:
        """Return the names by which the model of these settings may be divided."""
        owner = f"model {self.name!r}"
        plan = call(self.plan, owner, config) if self.plan else {}
        if not isinstance(plan, Mapping):
            raise PluginError(f"{owner}: {self.plan!r} returned {plan!r:.60}; expected {{pattern: role}}")
        stages = call(self.stages, owner, config) if isinstance(self.stages, str) else self.stages
        if not isinstance(stages, Stages | None):
            raise PluginError(f"{owner}: {self.stages!r} returned {stages!r:.60}; expected a Stages")
        if stages is not None and not isinstance(stages.between, Mapping):
            between = f"between of its stages is {stages.between!r:.60}"
            raise PluginError(f"{owner}: {between}; expected {{submodule: block that it follows}}")
        return Structure(model=self.name, blocks=self.blocks, plan=plan, stages=stages)


@dataclass(frozen=True, kw_only=True)
class Dataset(Spec):
    """``build(config, run) -> Samples``, see :class:`recipe_core.layouts.parallel.Samples`.

    An endless global order of samples, which depends on the seed alone; the core divides it between the ranks.
    """

    build: str = field(metadata=called("config", "run"))
    facts: str = field(default="", metadata=called("config"))
    """``package.module:function(config) -> DataFacts``, without torch."""
    indices: str = field(default="", metadata=called("config", "train"))
    """``package.module:function(config, train) -> IndexFacts``, without torch: what its indices need in this run, for
    ``recipe check``; called where its facts name no problem. Empty: it has none, or small ones."""
    identity: str = field(default="", metadata=called("config"))
    """``package.module:function(config) -> DataIdentity``, without torch, in milliseconds: digests of the data that
    these settings read, for comparison when a run continues. Empty: of the files that the settings name."""
    free: tuple[str, ...] = ()
    """Settings that may change while a run continues, since its identity says which samples they concern: those of
    :attr:`DataIdentity.phases`."""
    gives: tuple[str, ...] = ()
    """Names of the tensors that every micro batch has; empty: not known."""
    prepare: str = field(default="", metadata=called("settings"))
    """``package.module:function(settings) -> dict``: makes the files for ``recipe prepare NAME`` and returns the
    manifest."""
    prepare_config: type = NoSettings
    """Settings of ``recipe prepare NAME setting=value ...``: a frozen dataclass."""
    prepare_example: str = field(default="", metadata=called("folder"))
    """``package.module:function(folder) -> dict``: writes small inputs into the empty ``folder`` and returns the
    settings of ``prepare`` but for ``output``; ``recipe plugin check`` prepares them twice and compares."""
    prepare_part: str = field(default="", metadata=called("settings", "part"))
    """``package.module:function(settings, part) -> dict``: makes part K of N for ``recipe prepare NAME ... part=K/N``,
    a :class:`recipe_core.data.prepare.PreparePart`, and returns its manifest, which
    ``docs/how-to/plugins/write-a-plugin.md`` lists. It depends on ``settings``, the inputs, K and N alone. Empty:
    ``part=`` is refused."""
    merge_parts: str = field(default="", metadata=called("settings", "parts"))
    """``package.module:function(settings, parts) -> dict``: makes the folder ``settings.output`` of all parts, each a
    :class:`recipe_core.data.prepare.PreparedPart`, in order, and returns its manifest; the bytes are those of
    ``prepare``. Required with ``prepare_part``."""
    part_example: str = field(default="", metadata=called("folder"))
    """As ``prepare_example``, of settings that ``prepare_part`` takes; empty: those of ``prepare_example``."""
    files: str = field(default="", metadata=called())
    """``package.module:class`` of a :class:`recipe_core.data.prepare.DataFiles`, for ``recipe inspect`` and
    ``verify``."""
    tokenizer: str = field(default="", metadata=called("config"))
    """``package.module:function(config) -> dict``: names and texts of the files from which Hugging Face's AutoTokenizer
    gives the dataset's token ids (``vocab.txt``, ``tokenizer_config.json``), as far as they are known. A run keeps a
    copy, and a digest of them is compared wherever a model meets data."""
    documents: str = field(default="", metadata=called("config", "path"))
    """``package.module:function(config, path) -> TokenDocuments | None``, for ``recipe eval`` of a causal language
    model: a :class:`recipe_core.TokenDocuments` with the validation documents of these settings, or, if ``path`` is not
    None, with all documents of the prepared set there (``--data``); None if nothing there is such a set."""


@dataclass(frozen=True)
class LayoutSettings:
    """Base of the settings class of every layout; it declares as fields those of these attributes that a user sets."""

    pp = 1
    """Pipeline stages."""
    tp = 1
    """Tensor-parallel ranks of each stage."""
    sequence_parallel = False
    """Divide the activations between tensor-parallel layers along the sequence."""
    data = "ddp"
    """How data-parallel ranks hold the model: as copies, with optimizer states sharded, or with all of it sharded."""

    def axes(self, world_size: int) -> dict[str, int]:
        """Return the axes of the mesh and their sizes, whose product must be ``world_size``.

        ``"dp"`` (ranks that share no samples) is required; ``"tp"`` (ranks that share layers) and ``"pp"`` (ranks that
        hold consecutive blocks) are checked against the model.

        Raises:
            ValueError: the layout does not fit ``world_size`` processes; worded like one of ``__post_init__``.
        """
        return {"dp": world_size}

    def division(self, world_size: int) -> Division | None:
        """Return the division of memory for the estimates of ``recipe check``; None: unknown."""
        return None


@dataclass(frozen=True, kw_only=True)
class Layout(Spec):
    """``build(module, config, run) -> Parallel``."""

    build: str = field(metadata=called("module", "config", "run"))
    config: type[LayoutSettings] = LayoutSettings
    divides: bool = False
    """``module`` comes without values where the model can do so (``Model.deferred``), and not yet on ``run.device``;
    ``build`` calls :func:`recipe_core.layouts.materialise.materialise` when each process knows its shards."""


@dataclass(frozen=True, kw_only=True)
class EngineSpec(Spec):
    """``build(config, train, layout) -> Engine``: a context manager, see :class:`recipe_core.engine.protocol.Engine`.

    ``layout`` is the :class:`Part` of the run's layout, None where a caller has none. Of the functions named below, all
    but those of ``layouts`` and ``optimizers`` are called before a run and import no torch.
    """

    build: str = field(metadata=called("config", "train", "layout"))
    claims: str = field(default="", metadata=called("device"))
    """``package.module:function(device) -> bool``: True if it is the engine of this machine, which ``engine=auto``
    takes; ``device`` is ``train.device``. Where no engine claims the machine, ``auto`` is ``native``."""
    problems: str = field(default="", metadata=called("config", "train", "layout", "processes"))
    """``package.module:function(config, train, layout, processes) -> Iterable[str]``: a message for each
    requested feature that it lacks. ``layout`` and ``processes`` are None if unknown."""
    environment: str = field(default="", metadata=called("job", "processes", "several_machines"))
    """``package.module:function(job, processes, several_machines) -> Iterable[Variable]``: environment variables that a
    run should have, see :class:`recipe_core.engine.machine.environment.Variable`."""
    layouts: Mapping[str, str] = field(default_factory=dict, metadata=called("module", "config", "run"))
    """Its own build of a layout, by the layout's name: ``package.module:function(module, config, run) -> Parallel``,
    which moves the module to the device itself."""
    optimizers: Mapping[str, str] = field(default_factory=dict, metadata=called("config", "trainable"))
    """Its own build of an optimizer, by the optimizer's name, see :class:`OptimizerSpec`."""
    one_process: str = field(default="", metadata=called("layout"))
    """``package.module:function(layout) -> bool``: True if one process drives all devices of the run. Empty: never."""
    precompile: str = field(default="", metadata=called("job", "words", "out", "processes"))
    """``package.module:function(job, words, out, processes) -> int | None``: compiles what a run needs with a tool of
    its own and returns the tool's exit code; None: a dry run in our own processes compiles it."""
    findings: str = field(default="", metadata=called("environment"))
    """``package.module:function(environment) -> Iterable[Finding]``: findings of ``recipe doctor`` about its packages,
    devices and environment variables, see :class:`recipe_core.hooks.finding.Finding`."""
    traced: bool = False
    """Operations are gathered into graphs that a compiler translates: each new shape costs a compilation."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFormat(Spec):
    """``build(config)`` gives a :class:`recipe_core.checkpoint.formats.base.Format`, which saves, opens and loads
    checkpoints.

    A state is a nested dict of the parts ``model``, ``optimizer``, ``progress``, ``callbacks``, ``epoch`` and
    ``files``, see :mod:`recipe_core.checkpoint.lazy`. A format that uses the names and shapes of others (``naming``) is
    given and gives these, and ``recipe convert`` puts the model's adapter between.
    """

    patterns: tuple[str, ...] = ()
    """Patterns of file names by which a checkpoint of this format is recognised (``"ckpt_*.pt"``)."""
    holds: tuple[str, ...] = ("model", "optimizer", "progress")
    """The parts of a state that it can hold. A run saves only in formats that hold the first three, and
    ``callbacks`` if one of its callbacks has a state."""
    naming: str = ""
    """The naming of the tensors, a key of :attr:`Model.adapters`; empty: the module's own."""
    whole: tuple[str, ...] = ()
    """Settings, as arguments, that keep it from dividing tensors over several files; ``recipe merge`` adds them."""
    ranks: bool = False
    """It consists of a file for each tensor-parallel and pipeline rank, divided by the model's tensor plan, see
    :mod:`recipe_core.checkpoint.ranks.join`; it is for conversion, and no run saves in it."""
    pads: bool = False
    """For a format with a file for each rank: it pads the rows of the vocabulary."""
    model: str = ""
    """The only model that it is for; empty: any."""
    runs: str = ""
    """The only recipe whose runs save in it, where the recipe's own trainer writes what a state does not hold; empty:
    any. Checkpoints of other recipes are converted to it."""
    adapters_only: bool = False
    """It holds only what a transform of the model adds, see :attr:`recipe_core.TransformSpec.exports`; it is for
    conversion."""
    refines: str = ""
    """A format whose files this one's folders hold too: where the patterns of both match, this one is meant."""
    stages: bool = False
    """It can save where processes hold different parameters, as in a pipeline; a state then has meta tensors in place
    of the parameters of other processes."""


@dataclass(frozen=True, init=False)
class Use:
    """A contribution selected by name, with settings: ``Use("gpt", layers=12)``."""

    name: str
    settings: Mapping[str, Any]

    def __init__(self, name: str, /, **settings: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "settings", settings)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, as a composition of named contributions."""

    name: str
    summary: str
    model: Use
    data: Use
    layout: Use = Use("ddp")
    checkpoint: Use = Use("dcp")
    engine: Use = Use("auto")
    loss: Use = Use("model")
    """``model``: the model's own."""
    optimizer: Use | None = None
    """None: the one that ``train`` names."""
    schedule: Use | None = None
    """None: the one that ``train`` names."""
    trackers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of trackers, by their names; ``train.trackers`` says which of them are used."""
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of callbacks, by their names; ``train.callbacks`` says which of them are used."""
    wrappers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of data wrappers, by their names; ``data.wrappers`` says which of them are used, as in
    ``data=Use("words", wrappers=("long_only",))``."""
    transforms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of transforms, by their names; ``train.transforms`` says which of them are used."""
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of evaluations, by their names; ``train.evaluations`` says which of them are used."""
    train: Train = field(default_factory=Train)
    """Default settings of the section; a subclass of :class:`Train` adds settings that only this recipe has."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named overrides (section -> setting -> value); ``extends: NAME`` lays one over another, ``processes: N`` says how
    many it is made for. ``tiny`` must exist: it goes through the real command in seconds, on a laptop's CPU."""
    processes: int = 1
    """Processes that ``recipe run`` starts by default."""
    run: str = field(default=CORE_LOOP, metadata=called("job", "out"))
    """``package.module:function(job, out) -> results``: the training run; by default the core's loop."""
    applies_transforms: bool = False
    """``run`` applies ``job.transforms`` to its model, with :func:`recipe_core.layouts.transformed.transform`, as the
    core's loop does. False: a run with transforms is refused, unless it is the core's loop."""
    problems: str = field(default="", metadata=called("job", "world_size"))
    """``package.module:function(job, world_size) -> Iterable[str]``, without torch: problems that only this
    recipe's ``run`` has with settings that are right by themselves, one message each."""
    log_line: str = field(default="", metadata=called("row", "job"))
    """``package.module:function(row, job) -> str``: a line of the console for a row of metrics.jsonl, instead of
    the core's compact one."""
    log_formats: Mapping[str, str] = field(default_factory=dict, metadata=called("row", "job"))
    """Further such functions by name, for ``train.log_format=NAME``."""
    closing: str = field(default="", metadata=called("module", "job", "run"))
    """``package.module:function(module, job, run) -> dict``: called on every rank after the last step; what rank 0
    returns goes into results.json. The closing summary shows ``sample``, a generated text, and ``notes``, a dict of
    labels and lines."""
