"""The section ``train`` of every recipe, and helpers for settings classes. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Precision = Literal["fp32", "bf16_mixed", "bf16", "fp8"]
Schedule = str
"""The name of a learning-rate schedule."""
OptimizerStates = Literal["weights", "fp32", "master"]
OnDivergence = Literal["stop", "skip", "rollback"]


def too_small(settings: object, least: float, *names: str) -> list[str]:
    """Return a line for each of the settings ``names`` that is below ``least`` or NaN, for ``__post_init__``.

    A setting that is None passes.
    """
    values = {name: getattr(settings, name) for name in names}
    wrong = {name: value for name, value in values.items() if value is not None and not value >= least}
    return [f"{name}: expected at least {least}, got {value}" for name, value in wrong.items()]


@dataclass(frozen=True)
class Remark:
    """A remark on a setting that other settings leave without effect, or with an unintended one."""

    text: Callable[[Any], str]
    """``text(settings)`` returns half a sentence; empty: no remark."""
    always: bool = False
    """Also remark on the recipe's own value, which the user did not choose."""


def remarked(default: Any, text: Callable[[Any], str], *, always: bool = False) -> Any:
    """Declare a setting with a :class:`Remark`. `recipe check` prints it, and the start of a run."""
    return field(default=default, metadata={Remark: Remark(text, always)})


def remarks(settings: Any, own: Any = None) -> Iterator[tuple[str, str]]:
    """Yield the settings with a remark, and its text; ``own``: the recipe's settings."""
    for setting in fields(settings):
        remark: Remark | None = setting.metadata.get(Remark)
        if remark is None or not (text := remark.text(settings)):
            continue
        if remark.always or own is None or getattr(own, setting.name) != getattr(settings, setting.name):
            yield setting.name, text


def due(step: int, every: int) -> bool:
    """True at every ``every``-th step; never if ``every`` is 0."""
    return every > 0 and step % every == 0


def _beyond(name: str, outcome: str) -> Callable[[Train], str]:
    def remark(train: Train) -> str:
        return outcome if (getattr(train, name) or 0) > train.steps else ""

    return remark


def warmup_steps(train: Train) -> int:
    """Return the steps of warm-up, from ``warmup_steps`` or ``warmup_ratio``."""
    return train.warmup_steps or round(train.warmup_ratio * train.steps)


def _endless_warmup(name: str) -> Callable[[Train], str]:
    def remark(train: Train) -> str:
        if not getattr(train, name) or warmup_steps(train) < train.steps:
            return ""
        return f"the warm-up takes all of the {train.steps:,} steps, so that the rate never stays at train.lr"

    return remark


def _rising(train: Train) -> str:
    if train.min_lr <= train.lr:
        return ""
    return f"it is above train.lr={train.lr}, so that the rate rises where the schedule should let it fall"


def _without_golden(train: Train) -> str:
    usual = train.golden_tolerance == Train.golden_tolerance
    return "" if usual or train.golden else "there is no train.golden to compare with"


@dataclass(frozen=True, kw_only=True)
class Train:
    """Settings of training; every recipe has this section."""

    steps: int = 100
    """Optimizer steps of the whole schedule."""
    stop_after: int | None = remarked(None, _beyond("stop_after", "the schedule ends before it"))
    """Steps after which this invocation ends; the schedule keeps the length ``steps``."""
    global_batch: int = 8
    """Samples per optimizer step, over all ranks and micro batches."""
    micro_batch: int = 4
    """Samples per forward and backward of one rank."""
    lr: float = 1e-3
    """Peak learning rate."""
    min_lr: float = remarked(0.0, _rising, always=True)
    """Learning rate at the end of a decaying schedule."""
    schedule: Schedule = "cosine"
    """The schedule of the learning rate: ``constant``, ``linear``, ``cosine``, ``polynomial``, ``wsd``, or one of a
    plugin. ``schedule=NAME`` says the same."""
    schedule_power: float = 0.5
    """Power of the polynomial schedule."""
    warmup_steps: int = remarked(0, _endless_warmup("warmup_steps"), always=True)
    """Steps in which the learning rate rises linearly from zero."""
    warmup_ratio: float = remarked(0.0, _endless_warmup("warmup_ratio"), always=True)
    """The same as a proportion of ``steps``; give one of the two."""
    optimizer: str = "adamw"
    """The optimizer: ``adamw``, ``lamb``, or one of a plugin. ``optimizer=NAME`` says the same."""
    optimizer_states: OptimizerStates = "weights"
    """``weights``: moments as wide as the weights; ``fp32``: fp32 moments, also of bf16 weights; ``master``: fp32
    moments and an fp32 copy of the bf16 weights, which takes the updates."""
    stochastic_rounding: bool = False
    """Round bf16 weights (and their bf16 moments) up or down at random in proportion, so that small updates are not
    lost; the random numbers follow from ``seed``, whatever the device and the number of processes."""
    weight_decay: float = 0.01
    """Not applied to biases and norms."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the first and the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment, to avoid a division by zero."""
    trust_clip: float = 0.0
    """Limit of LAMB's trust ratio, the norm of a weight over that of its update; 0: no limit."""
    clip: float = 1.0
    """Limit of the global gradient norm; 0 disables clipping. It is also LAMB's first step."""
    precision: Precision = "fp32"
    """``bf16_mixed``: fp32 weights under autocast; ``bf16``: bf16 weights and gradients; ``fp8``: as ``bf16_mixed``,
    but the blocks multiply in 8 bits by torchao (CUDA from Ada on; emulated on a CPU, for tests)."""
    activation_checkpointing: bool = False
    """Recompute each block in backward instead of keeping its activations."""
    compile: bool | None = None
    """Compile the model with ``torch.compile``: block by block, which takes the time of one block, and the loss; as a
    whole on a CPU, on Neuron, and where the model names no blocks. A CPU compiles for minutes and is seldom faster.
    null: models of 50 million parameters or more on CUDA, where Triton and a C compiler are installed."""
    seed: int = 1234
    """Seed of the initial weights, the order of the samples, dropout and stochastic rounding."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, or any device that ``torch.accelerator`` knows (``neuron``, ``hpu``, ...)."""
    log_every: int = 10
    """Steps per line of metrics.jsonl and of the console."""
    log_format: str = "auto"
    """Lines of the console. ``compact``: step, loss, learning rate, gradient norm, speed, time left and memory in 80
    columns; or a format of the recipe (``megatron`` and ``neuron`` write the words of those projects' logs). ``auto``:
    the recipe's own line, if it has one, else ``compact``."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Trackers that show the metrics, in addition to metrics.jsonl; their settings are ``tracker.NAME.setting``."""
    callbacks: tuple[str, ...] = ()
    """Code that runs at named moments of training, in this order; its settings are ``callback.NAME.setting``."""
    evaluations: tuple[str, ...] = ()
    """Numbers that are measured of the model wherever a validation is due (``held_out``, ``text``), in this order;
    their settings are ``evaluation.NAME.setting``, and ``recipe eval --tasks NAME`` measures them of a checkpoint."""
    transforms: tuple[str, ...] = ()
    """Changes of the model before the layout divides it (``freeze``, ``lora``), in this order; their settings are
    ``transform.NAME.setting``."""
    eval_every: int = remarked(0, _beyond("eval_every", "the run ends before it; it evaluates at its start and end"))
    """Steps between evaluations; 0 disables evaluation."""
    eval_samples: int = 64
    """Samples per evaluation, taken from the start of the validation split, the same each time."""
    save_every: int = remarked(0, _beyond("save_every", "the run ends before it; it saves at its end alone"))
    """Steps between checkpoints; 0 saves only at the end."""
    save_minutes: float = 0.0
    """Minutes between checkpoints, in addition to ``save_every``; 0: none by time."""
    check_replicas_every: int = 0
    """Steps between comparisons, bit by bit, of what several ranks hold copies of (weights, optimizer states, buffers);
    the run ends if copies differ. 0 compares only before a checkpoint."""
    check_replicas_at_save: bool = True
    """Compare the copies before each checkpoint, so that no checkpoint is made of copies that have drifted apart."""
    keep: int = 2
    """Checkpoints to keep, newest first; 0 keeps all."""
    keep_best: bool = True
    """Also keep the checkpoint with the lowest validation loss, of those saved at a step with an evaluation."""
    on_divergence: OnDivergence = "stop"
    """Handling of a step whose loss or gradient norm is not finite, or whose norm is beyond ``spike_sigma``. ``stop``:
    the run ends as soon as it is logged or saved. ``skip``: it is not applied, its samples are named, and the schedule
    waits for the next one. ``rollback``: the run continues from the last good checkpoint, with the samples after the
    bad ones. Both read loss and norm on the host in each step."""
    spike_sigma: float = 0.0
    """Standard deviations above the mean of the last 100 logged gradient norms at which a norm counts as divergence; 0:
    only a norm that is not finite does."""
    resume: str = "auto"
    """``auto``: continue from the newest complete checkpoint of the run folder, if any; ``none``: start from the
    beginning; ``step-N``: continue from this checkpoint of the run folder, once, and set later ones aside; a path:
    continue from this checkpoint of another run if the folder has none yet."""
    init_from: str | None = None
    """Source of the initial weights of a new run: a run folder, a checkpoint folder or file of any format, or a Hugging
    Face folder. Optimizer, schedule and data start anew. A run that continues does not read it. ``required``: the
    variant needs one, which you name."""
    accept: str | None = None
    """Accept one difference between the recorded data or tokenizer and the present ones, by the key in the message
    about it. It is recorded in job.yaml and results.json."""
    golden: str | None = None
    """A run folder, a metrics.jsonl or a file with one loss a line. Its losses are compared with the run's, step by
    step, and the run ends at the first that differs by more than ``golden_tolerance``."""
    golden_tolerance: float = remarked(0.02, _without_golden)
    """Relative tolerance of the comparison with ``golden``."""
    timeout: float = 600.0
    """Seconds that a rank may wait for the others, or for the next batch, before the run is ended as hung."""
    on_hang: str | None = None
    """A shell command that one rank runs when the run is ended as hung, as an alert. It may take 8 seconds, and gets
    the diagnosis in ``RECIPE_HANG_RANKS``, ``_HOSTS``, ``_KIND``, ``_STEP``, ``_MESSAGE`` and ``_LOGS``."""
    log_stragglers: bool = False
    """Add the slowest rank and its seconds a step to the rows of metrics.jsonl."""

    def __post_init__(self) -> None:
        problems = [
            *too_small(self, 1, "steps", "stop_after", "global_batch", "micro_batch", "log_every", "eval_samples"),
            *too_small(self, 0, "warmup_steps", "eval_every", "save_every", "save_minutes", "keep", "weight_decay"),
            *too_small(self, 0, "check_replicas_every", "trust_clip", "clip", "lr", "min_lr", "golden_tolerance"),
            *too_small(self, 0, "spike_sigma"),
        ]
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        problems += [
            f"{name}: expected less than 2^63, got {value}"
            for name, value in numbers.items()
            if isinstance(value, int) and abs(value) >= 1 << 63  # the limit of counters and generators
        ]
        if self.spike_sigma and self.on_divergence == "stop":
            problems.append("spike_sigma: it needs on_divergence=skip or on_divergence=rollback")
        if not 0 <= self.warmup_ratio <= 1:
            problems.append(f"warmup_ratio: expected 0 to 1, got {self.warmup_ratio}")
        if self.warmup_steps and self.warmup_ratio:
            problems.append("warmup_steps, warmup_ratio: both are set; give one of the two")
        if not all(0 <= b < 1 for b in self.betas):
            problems.append(f"betas: expected two numbers from 0 to below 1, got {list(self.betas)}")
        if not self.eps > 0:
            problems.append(f"eps: expected more than 0, got {self.eps}")
        if not self.schedule_power > 0:
            problems.append(f"schedule_power: expected more than 0, got {self.schedule_power}")
        if not self.timeout > 0:
            problems.append(f"timeout: expected more than 0 seconds, got {self.timeout}")
        if self.init_from not in (None, "required") and self.resume not in ("auto", "none"):
            problems.append(f"init_from, resume: both say where to begin ({self.init_from}, {self.resume}); give one")
        problems += self._optimizer_problems()
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def resume_path(self) -> str | None:
        """The checkpoint of another run that ``resume`` names, or None."""
        return None if self.resume in ("auto", "none") or self.resume_step is not None else self.resume

    @property
    def resume_step(self) -> int | None:
        """The step of the run's own checkpoint that ``resume`` names, or None."""
        number = self.resume.removeprefix("step-")
        return int(number) if number != self.resume and number.isdecimal() else None

    def for_run(self, world_size: int, train_samples: int | None) -> Train:
        """Return the settings of a run on ``world_size`` processes with ``train_samples`` samples (None: unknown).

        A recipe's subclass may derive settings here, such as the steps from its epochs.
        """
        return self

    def checkpoints_at_once(self) -> int:
        """Return the maximum number of checkpoints at a time; the last step is always saved."""
        steps = min(self.steps, self.stop_after or self.steps)
        saved = -(-steps // self.save_every) if self.save_every else 1
        best = int(self.keep_best and self.eval_every > 0)
        return min(saved, self.keep + best + 1) if self.keep else saved

    def _optimizer_problems(self) -> list[str]:
        problems = []
        if self.optimizer_states == "master" and self.precision != "bf16":
            problems.append(
                f"optimizer_states: master keeps bf16 weights in fp32 too, and with precision={self.precision} they "
                "are fp32 already; take optimizer_states=weights, or precision=bf16"
            )
        if self.stochastic_rounding and self.precision != "bf16":
            problems.append(
                f"stochastic_rounding: it rounds to bf16 weights, and with precision={self.precision} they are fp32; "
                "switch it off, or take precision=bf16"
            )
        elif self.stochastic_rounding and self.optimizer_states == "master":
            problems.append(
                "stochastic_rounding: optimizer_states=master keeps all of each update already; take one of the two"
            )
        return problems
