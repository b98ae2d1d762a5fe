"""Contributions of the core itself, through the same hooks as any plugin."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core.checkpoint.settings import HfSettings
from recipe_core.data.filtered import Filtered
from recipe_core.data.mixture import Mixture
from recipe_core.hooks.markers import hookimpl
from recipe_core.hooks.specs import CheckpointFormat, Dataset, EngineSpec, Layout
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.specs.executor import ExecutorSpec
from recipe_core.hooks.specs.launcher import Launcher
from recipe_core.hooks.specs.loop import OWN_LOSS, CallbackSpec, LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.specs.wrapper import DataWrapperSpec
from recipe_core.launch.launchers.sky import Sky
from recipe_core.launch.launchers.slurm import Slurm
from recipe_core.launch.launchers.trainjob import Kubernetes
from recipe_core.layouts.settings import Ddp, Fsdp, Pp, SingleProcess, Tp, Zero1
from recipe_core.settings.schedule import Wsd
from recipe_core.train.building.transforms.settings import Freeze, Lora
from recipe_core.train.callbacks.settings import Activations, BatchRamp, EarlyStopping, Ema, Unfreezing
from recipe_core.train.metrics.evaluations.settings import HeldOut, TextFile


@hookimpl
def register_layouts() -> Iterable[Layout]:
    """From one process to teams that share layers; each but the first two combines several ways."""
    yield Layout(
        name="single",
        build="recipe_core.layouts.replicated:single",
        config=SingleProcess,
        summary="one process holds the model",
    )
    yield Layout(
        name="ddp",
        build="recipe_core.layouts.replicated:ddp",
        config=Ddp,
        summary="data parallel: every rank holds the whole model and its part of the batch",
    )
    yield Layout(
        name="zero1",
        build="recipe_core.layouts.divided:divided",
        config=Zero1,
        divides=True,
        summary="data parallel, with the optimizer's states shared out over the ranks",
    )
    yield Layout(
        name="fsdp",
        build="recipe_core.layouts.divided:divided",
        config=Fsdp,
        divides=True,
        summary="data parallel, with weights, gradients and optimizer states shared out over the ranks",
    )
    yield Layout(
        name="tp",
        build="recipe_core.layouts.divided:divided",
        config=Tp,
        divides=True,
        summary="tensor parallel: teams of ranks share each layer; among teams ddp, zero1 or fsdp",
    )
    yield Layout(
        name="pp",
        build="recipe_core.layouts.divided:divided",
        config=Pp,
        divides=True,
        summary="pipeline parallel: ranks or teams hold consecutive blocks",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """A dataset made of others."""
    yield Dataset(
        name="mixture",
        build="recipe_core.layouts.samples.mixture:build",
        facts="recipe_core.data.mixture_facts:facts",
        indices="recipe_core.data.mixture_facts:indices",
        identity="recipe_core.data.mixture_facts:identity",
        tokenizer="recipe_core.data.mixture_facts:tokenizer",
        config=Mixture,
        summary="samples of several datasets of any plugins, in proportion to their weights",
    )


@hookimpl
def register_data_wrappers() -> Iterable[DataWrapperSpec]:
    """A filter by the values of a tensor."""
    yield DataWrapperSpec(
        name="filtered",
        build="recipe_core.layouts.samples.counted:build",
        config=Filtered,
        filters=True,
        summary="samples with enough, and not too many, values of a tensor that are not padding",
    )


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """PyTorch's own formats, and Hugging Face's."""
    yield CheckpointFormat(
        name="dcp",
        build="recipe_core.checkpoint.formats.dcp:Dcp",
        patterns=(".metadata",),
        holds=("model", "optimizer", "progress", "callbacks"),
        stages=True,
        summary="torch.distributed.checkpoint: sharded, loads into any layout",
    )
    yield CheckpointFormat(
        name="single",
        build="recipe_core.checkpoint.formats.single:Single",
        patterns=("checkpoint.pt",),
        holds=("model", "optimizer", "progress", "callbacks"),
        summary="one file that torch.load(weights_only=True) reads; written by rank 0",
    )
    yield CheckpointFormat(
        name="hf",
        build="recipe_core.checkpoint.formats.hf:Hf",
        config=HfSettings,
        patterns=("model.safetensors", "pytorch_model.bin", "*.safetensors.index.json", "pytorch_model.bin.index.json"),
        holds=("model", "files"),
        naming="hf",
        whole=("shard_gb=1e9",),
        summary="a folder for Hugging Face's from_pretrained: weights and config.json; for conversion",
    )
    yield CheckpointFormat(
        name="peft",
        build="recipe_core.checkpoint.formats.peft:Peft",
        patterns=("adapter_model.safetensors",),
        holds=("model", "files"),
        naming="hf",
        adapters_only=True,
        summary="a folder for peft's from_pretrained: the adapters of transforms=lora alone; for conversion",
    )


@hookimpl
def register_engines() -> Iterable[EngineSpec]:
    """PyTorch's own devices."""
    yield EngineSpec(
        name="native",
        build="recipe_core.engine.native:build",
        problems="recipe_core.engine.select:native_problems",
        environment="recipe_core.engine.machine.environment:native_variables",
        precompile="recipe_core.engine.machine.environment:native_precompile",
        findings="recipe_core.engine.neuron.doctor:findings",
        summary="PyTorch's own devices: CPU, CUDA, and any that torch.accelerator knows",
    )


@hookimpl
def register_launchers() -> Iterable[Launcher]:
    """Batch systems for ``recipe submit``."""
    yield Launcher(
        name="slurm",
        build="recipe_core.launch.launchers.slurm:scripts",
        checks_nodes=True,
        submit="recipe_core.launch.launchers.slurm_commands:submit",
        state="recipe_core.launch.launchers.slurm_commands:state",
        stop="recipe_core.launch.launchers.slurm_commands:stop",
        config=Slurm,
        summary="Slurm: an sbatch script with a task of srun for each rank",
    )
    yield Launcher(
        name="k8s",
        build="recipe_core.launch.launchers.trainjob:manifests",
        sees_files=False,
        config=Kubernetes,
        summary="Kubernetes: a TrainJob of Kubeflow Trainer 2.3, printed for kubectl",
    )
    yield Launcher(
        name="sky",
        build="recipe_core.launch.launchers.sky:task",
        sees_files=False,
        config=Sky,
        summary="SkyPilot: a task, printed for sky launch",
    )


@hookimpl
def register_executors() -> Iterable[ExecutorSpec]:
    """Engines for the parts of ``recipe prepare``."""
    yield ExecutorSpec(
        name="local",
        build="recipe_core.data.prepare.executors.local:local",
        summary="processes of this machine: `--on local` fills the cores, `--on local:4` runs four parts at a time",
    )
    yield ExecutorSpec(
        name="slurm",
        build="recipe_core.data.prepare.executors.slurm:slurm",
        config=Slurm,
        summary="Slurm: array jobs with a task for each part",
    )


@hookimpl
def register_losses() -> Iterable[LossSpec]:
    """The one that every model brings."""
    yield LossSpec(
        name=OWN_LOSS,
        build="recipe_core.layouts.parallel:own_loss",
        summary="the loss that the model itself brings",
    )


@hookimpl
def register_optimizers() -> Iterable[OptimizerSpec]:
    """Adam with decoupled weight decay, and its form for very large batches."""
    common = ("weight_decay", "betas", "eps", "optimizer_states", "stochastic_rounding")
    yield OptimizerSpec(
        name="adamw",
        build="recipe_core.train.optim.build:adamw",
        facts="recipe_core.settings.facts:adam_facts",
        uses=common,
        summary="AdamW: Adam with decoupled weight decay",
    )
    yield OptimizerSpec(
        name="lamb",
        build="recipe_core.train.optim.build:lamb",
        facts="recipe_core.settings.facts:adam_facts",
        uses=(*common, "trust_clip"),
        summary="NVIDIA's LAMB, for very large batches: each weight's Adam update scaled to the weight's norm",
    )


@hookimpl
def register_schedules() -> Iterable[ScheduleSpec]:
    """The learning rate of each step; all but ``polynomial`` begin with a linear warm-up."""
    warmup = ("warmup_steps", "warmup_ratio")
    yield ScheduleSpec(
        name="constant",
        build="recipe_core.settings.schedule:constant",
        uses=warmup,
        summary="the peak after the warm-up",
    )
    yield ScheduleSpec(
        name="linear",
        build="recipe_core.settings.schedule:linear",
        uses=(*warmup, "min_lr"),
        summary="a straight fall to train.min_lr",
    )
    yield ScheduleSpec(
        name="cosine",
        build="recipe_core.settings.schedule:cosine",
        uses=(*warmup, "min_lr"),
        summary="a fall to train.min_lr along half a cosine",
    )
    yield ScheduleSpec(
        name="polynomial",
        build="recipe_core.settings.schedule:polynomial",
        uses=(*warmup, "min_lr", "schedule_power"),
        summary="NVIDIA's for LAMB: (1 - progress)^train.schedule_power, a step down after the warm-up",
    )
    yield ScheduleSpec(
        name="wsd",
        build="recipe_core.settings.schedule:wsd",
        config=Wsd,
        uses=(*warmup, "min_lr"),
        summary="warm-up, stable, decay: the peak until a fall to train.min_lr in the last steps",
    )


@hookimpl
def register_trackers() -> Iterable[TrackerSpec]:
    """Files that TensorBoard reads."""
    yield TrackerSpec(
        name="tensorboard",
        build="recipe_core.train.metrics.tensorboard:build",
        summary="files for TensorBoard, in the folder tensorboard of the run",
    )


@hookimpl
def register_callbacks() -> Iterable[CallbackSpec]:
    """Averaged weights, the end of a run that no longer improves, frozen layers, sizes of activations."""
    yield CallbackSpec(
        name="ema",
        build="recipe_core.train.callbacks.ema:WeightAverage",
        config=Ema,
        saves=True,
        bytes_per_parameter=4.0,
        summary="an exponential moving average of the weights, evaluated beside them",
    )
    yield CallbackSpec(
        name="early_stopping",
        build="recipe_core.train.callbacks.stopping:EarlyStop",
        config=EarlyStopping,
        saves=True,
        problems="recipe_core.train.callbacks.settings:early_stopping_problems",
        summary="the end of a run whose evaluations no longer improve",
    )
    yield CallbackSpec(
        name="unfreezing",
        build="recipe_core.train.callbacks.unfreezing:GradualUnfreezing",
        config=Unfreezing,
        summary="gradual unfreezing: the last block is trained first, then one block more at a time",
    )
    yield CallbackSpec(
        name="activations",
        build="recipe_core.train.callbacks.activations:ActivationStatistics",
        config=Activations,
        problems="recipe_core.train.callbacks.settings:activations_problems",
        summary="root mean square and largest magnitude of the output of each block, in logged steps",
    )
    yield CallbackSpec(
        name="batch_ramp",
        build="recipe_core.train.callbacks.batch_ramp:GrowingBatch",
        config=BatchRamp,
        problems="recipe_core.train.callbacks.settings:batch_ramp_problems",
        summary="a global batch that grows at the beginning, as Megatron-LM's rampup-batch-size",
    )


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """Frozen parameters, low-rank adapters."""
    yield TransformSpec(
        name="freeze",
        build="recipe_core.train.building.transforms.freeze:freeze",
        config=Freeze,
        problems="recipe_core.train.building.transforms.settings:freeze_problems",
        summary="parameters that keep their values, by the names of submodules",
    )
    yield TransformSpec(
        name="lora",
        build="recipe_core.train.building.transforms.lora:lora",
        config=Lora,
        free=("dropout",),
        merge="recipe_core.train.building.transforms.lora:merge",
        exports={"peft": "recipe_core.train.building.transforms.peft:peft_adapter"},
        summary="low-rank adapters of linear layers, whose weights are frozen",
    )


@hookimpl
def register_evaluations() -> Iterable[EvaluationSpec]:
    """The loss on other data, and on a text."""
    settings = "recipe_core.train.metrics.evaluations.settings"
    yield EvaluationSpec(
        name="held_out",
        build="recipe_core.train.metrics.evaluations.held_out:build",
        config=HeldOut,
        takes=("loss",),
        problems=f"{settings}:held_out_problems",
        summary="loss and perplexity on other files, another split, or other settings of the dataset",
    )
    yield EvaluationSpec(
        name="text",
        build="recipe_core.train.metrics.evaluations.text:build",
        config=TextFile,
        takes=("score",),
        problems=f"{settings}:text_problems",
        summary="loss on a text in bits per byte, for language models with a tokenizer",
    )
