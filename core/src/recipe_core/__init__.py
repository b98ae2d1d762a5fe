"""Compose models, datasets, layouts and checkpoint formats into training recipes.

Plugins need only names of this module, of :mod:`recipe_core.data.prepare` and :mod:`recipe_core.data.text` (files for
``recipe prepare``) and of :mod:`recipe_core.testing`. These names are stable: within one version of the interface,
:data:`API`, names, arguments and fields are added, but none is removed or changes its meaning. Submodules may change
with every release.

Names are imported at their first use: a ``plugin.py`` may import from here without PyTorch, and the command installs
its signal handlers before it imports anything else.
"""

TYPE_CHECKING = False  # typing takes longer to import than the command takes to handle signals

if TYPE_CHECKING:
    from recipe_core.checkpoint.adapter import Adapter, Link, Naming
    from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
    from recipe_core.checkpoint.formats.hf_config import hf_settings, read_hf_config, require_hf_values
    from recipe_core.checkpoint.formats.single import OneFile
    from recipe_core.checkpoint.inference.evaluate import evaluate_text
    from recipe_core.checkpoint.inference.generate import generate_text
    from recipe_core.checkpoint.inference.score import score_text
    from recipe_core.checkpoint.lazy import Lazy, lazy
    from recipe_core.checkpoint.match.trained import TrainedModel
    from recipe_core.cli.arguments import RecipeCommand, job_of, recipe_arguments
    from recipe_core.engine.loader import Batch
    from recipe_core.engine.machine.environment import Variable
    from recipe_core.engine.native import NativeEngine
    from recipe_core.engine.protocol import Engine
    from recipe_core.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DiskError,
        DivergedError,
        LaunchError,
        PluginError,
        RecipeError,
        did_you_mean,
    )
    from recipe_core.files import atomic_file, atomic_folder, load_or_build, write_text
    from recipe_core.hooks.facts import IndexFacts, OptimizerFacts
    from recipe_core.hooks.finding import Finding
    from recipe_core.hooks.inference import Evaluation, Generation, Scorer, TokenDocuments
    from recipe_core.hooks.markers import hookimpl
    from recipe_core.hooks.specs import (
        CheckpointFormat,
        DataFacts,
        DataIdentity,
        Dataset,
        Division,
        EngineSpec,
        Layout,
        LayoutSettings,
        Model,
        ModelFacts,
        NoSettings,
        Part,
        Recipe,
        Stages,
        Structure,
        Use,
    )
    from recipe_core.hooks.specs.command import CommandSpec
    from recipe_core.hooks.specs.evaluation import EvaluationSpec
    from recipe_core.hooks.specs.executor import ExecutorRun, ExecutorSpec, PartTask, Submit
    from recipe_core.hooks.specs.launcher import Launcher, Submission
    from recipe_core.hooks.specs.loop import CallbackSpec, LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
    from recipe_core.hooks.specs.transform import TransformSpec
    from recipe_core.hooks.specs.wrapper import DataWrapperSpec, dataset_parts
    from recipe_core.hooks.train import Train, remarked, too_small, warmup_steps
    from recipe_core.hooks.version import API
    from recipe_core.layouts.materialise import Deferred, materialise
    from recipe_core.layouts.outputs import output_of
    from recipe_core.layouts.parallel import Loss, Micro, Parallel, Run, Samples
    from recipe_core.layouts.samples.mapping import SampleGenerators
    from recipe_core.layouts.samples.wrapping import WrapperRun
    from recipe_core.ops.attention import causal_attention, grouped_query_attention
    from recipe_core.ops.cross_entropy import linear_cross_entropy, losses_and_hits
    from recipe_core.ops.documents import (
        Documents,
        document_attention,
        document_positions,
        documents_of,
        loss_weights,
        masked_mean_loss,
    )
    from recipe_core.ops.dropout import dropout
    from recipe_core.ops.group_attention import Groups, PackedSegments, group_attention, groups_of
    from recipe_core.ops.initial import normal_of, uniform_of
    from recipe_core.ops.key_values import BlockCache, KeyValueCache
    from recipe_core.ops.norm import add_norm
    from recipe_core.ops.vocabulary import linear_logits
    from recipe_core.settings.job import Job
    from recipe_core.settings.variants import variants_of
    from recipe_core.train.callbacks.callback import Callback, CallbackRun
    from recipe_core.train.metrics.evaluations.likelihoods import Likelihood
    from recipe_core.train.metrics.evaluations.model import EvaluatedModel, EvaluationSamples
    from recipe_core.train.metrics.tracker import TrackedRun, Tracker
    from recipe_core.train.optim.build import Trainable

_LAZY = {
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "DiskError",
        "DivergedError",
        "LaunchError",
        "PluginError",
        "RecipeError",
        "did_you_mean",
    ),
    "hooks.finding": ("Finding",),
    "hooks.facts": ("IndexFacts", "OptimizerFacts"),
    "hooks.inference": ("Evaluation", "Generation", "Scorer", "TokenDocuments"),
    "hooks.specs.command": ("CommandSpec",),
    "hooks.specs.evaluation": ("EvaluationSpec",),
    "hooks.specs.executor": ("ExecutorRun", "ExecutorSpec", "PartTask", "Submit"),
    "hooks.specs.launcher": ("Launcher", "Submission"),
    "hooks.specs.loop": ("CallbackSpec", "LossSpec", "OptimizerSpec", "ScheduleSpec", "TrackerSpec"),
    "hooks.specs.wrapper": ("DataWrapperSpec", "dataset_parts"),
    "hooks.specs.transform": ("TransformSpec",),
    "hooks.markers": ("hookimpl",),
    "hooks.specs": (
        "CheckpointFormat",
        "DataFacts",
        "DataIdentity",
        "Dataset",
        "Division",
        "EngineSpec",
        "Layout",
        "LayoutSettings",
        "Model",
        "ModelFacts",
        "NoSettings",
        "Part",
        "Recipe",
        "Stages",
        "Structure",
        "Use",
    ),
    "hooks.train": ("Train", "remarked", "too_small", "warmup_steps"),
    "hooks.version": ("API",),
    "checkpoint.adapter": ("Adapter", "Link", "Naming"),
    "checkpoint.formats.base": ("NO_RUN", "Format", "SaveContext"),
    "checkpoint.formats.hf_config": ("hf_settings", "read_hf_config", "require_hf_values"),
    "checkpoint.formats.single": ("OneFile",),
    "checkpoint.inference.evaluate": ("evaluate_text",),
    "checkpoint.inference.generate": ("generate_text",),
    "checkpoint.inference.score": ("score_text",),
    "checkpoint.lazy": ("Lazy", "lazy"),
    "checkpoint.match.trained": ("TrainedModel",),
    "cli.arguments": ("RecipeCommand", "job_of", "recipe_arguments"),
    "engine.machine.environment": ("Variable",),
    "engine.loader": ("Batch",),
    "engine.native": ("NativeEngine",),
    "engine.protocol": ("Engine",),
    "files": ("atomic_file", "atomic_folder", "load_or_build", "write_text"),
    "layouts.materialise": ("Deferred", "materialise"),
    "layouts.outputs": ("output_of",),
    "layouts.parallel": ("Loss", "Micro", "Parallel", "Run", "Samples"),
    "layouts.samples.mapping": ("SampleGenerators",),
    "layouts.samples.wrapping": ("WrapperRun",),
    "ops.attention": ("causal_attention", "grouped_query_attention"),
    "ops.cross_entropy": ("linear_cross_entropy", "losses_and_hits"),
    "ops.documents": (
        "Documents",
        "document_attention",
        "document_positions",
        "documents_of",
        "loss_weights",
        "masked_mean_loss",
    ),
    "ops.dropout": ("dropout",),
    "ops.group_attention": ("Groups", "PackedSegments", "group_attention", "groups_of"),
    "ops.initial": ("normal_of", "uniform_of"),
    "ops.key_values": ("BlockCache", "KeyValueCache"),
    "ops.norm": ("add_norm",),
    "ops.vocabulary": ("linear_logits",),
    "settings.job": ("Job",),
    "train.callbacks.callback": ("Callback", "CallbackRun"),
    "train.metrics.evaluations.likelihoods": ("Likelihood",),
    "train.metrics.evaluations.model": ("EvaluatedModel", "EvaluationSamples"),
    "train.metrics.tracker": ("TrackedRun", "Tracker"),
    "train.optim.build": ("Trainable",),
    "settings.variants": ("variants_of",),
}
"""The names of the block above, by module."""

__all__ = [
    "API",
    "NO_RUN",
    "Adapter",
    "Batch",
    "BlockCache",
    "Callback",
    "CallbackRun",
    "CallbackSpec",
    "CheckpointError",
    "CheckpointFormat",
    "CommandSpec",
    "ConfigError",
    "DataError",
    "DataFacts",
    "DataIdentity",
    "DataWrapperSpec",
    "Dataset",
    "Deferred",
    "DiskError",
    "DivergedError",
    "Division",
    "Documents",
    "Engine",
    "EngineSpec",
    "EvaluatedModel",
    "Evaluation",
    "EvaluationSamples",
    "EvaluationSpec",
    "ExecutorRun",
    "ExecutorSpec",
    "Finding",
    "Format",
    "Generation",
    "Groups",
    "IndexFacts",
    "Job",
    "KeyValueCache",
    "LaunchError",
    "Launcher",
    "Layout",
    "LayoutSettings",
    "Lazy",
    "Likelihood",
    "Link",
    "Loss",
    "LossSpec",
    "Micro",
    "Model",
    "ModelFacts",
    "Naming",
    "NativeEngine",
    "NoSettings",
    "OneFile",
    "OptimizerFacts",
    "OptimizerSpec",
    "PackedSegments",
    "Parallel",
    "Part",
    "PartTask",
    "PluginError",
    "Recipe",
    "RecipeCommand",
    "RecipeError",
    "Run",
    "SampleGenerators",
    "Samples",
    "SaveContext",
    "ScheduleSpec",
    "Scorer",
    "Stages",
    "Structure",
    "Submission",
    "Submit",
    "TokenDocuments",
    "TrackedRun",
    "Tracker",
    "TrackerSpec",
    "Train",
    "Trainable",
    "TrainedModel",
    "TransformSpec",
    "Use",
    "Variable",
    "WrapperRun",
    "add_norm",
    "atomic_file",
    "atomic_folder",
    "causal_attention",
    "dataset_parts",
    "did_you_mean",
    "document_attention",
    "document_positions",
    "documents_of",
    "dropout",
    "evaluate_text",
    "generate_text",
    "group_attention",
    "grouped_query_attention",
    "groups_of",
    "hf_settings",
    "hookimpl",
    "job_of",
    "lazy",
    "linear_cross_entropy",
    "linear_logits",
    "load_or_build",
    "loss_weights",
    "losses_and_hits",
    "masked_mean_loss",
    "materialise",
    "normal_of",
    "output_of",
    "read_hf_config",
    "recipe_arguments",
    "remarked",
    "require_hf_values",
    "score_text",
    "too_small",
    "uniform_of",
    "variants_of",
    "warmup_steps",
    "write_text",
]


def __getattr__(name: str) -> object:
    """Import a name at its first use."""
    import importlib

    home = next((module for module, names in _LAZY.items() if name in names), None)
    if home is None:
        from recipe_core.hooks.version import API

        raise AttributeError(f"module {__name__!r} (API {API}) has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
