"""The settings of training itself, which every recipe has, and a check for settings classes. No torch here."""

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
    """For ``__post_init__``: a line for each of the settings ``names`` that is below ``least``, or not a number.

    One that is None is not set, and fits.
    """
    values = {name: getattr(settings, name) for name in names}
    wrong = {name: value for name, value in values.items() if value is not None and not value >= least}
    return [f"{name}: expected at least {least}, got {value}" for name, value in wrong.items()]


@dataclass(frozen=True)
class Remark:
    """What to say of a setting that other settings leave without effect, or with another one than it is for."""

    text: Callable[[Any], str]
    """``text(settings)``: half a sentence, empty where the setting does what it is for."""
    always: bool = False
    """Say it of a value too that is the recipe's own, so that the user did not choose it."""


def remarked(default: Any, text: Callable[[Any], str], *, always: bool = False) -> Any:
    """Declare a setting with a :class:`Remark`. `recipe check` prints it, and the start of a run."""
    return field(default=default, metadata={Remark: Remark(text, always)})


def remarks(settings: Any, own: Any = None) -> Iterator[tuple[str, str]]:
    """The settings that do not do now what they are for, each with the text of its remark; ``own``: the recipe's."""
    for one in fields(settings):
        remark: Remark | None = one.metadata.get(Remark)
        if remark is None or not (text := remark.text(settings)):
            continue
        if remark.always or own is None or getattr(own, one.name) != getattr(settings, one.name):
            yield one.name, text


def due(step: int, every: int) -> bool:
    """True at every ``every``-th step; never where that is 0."""
    return every > 0 and step % every == 0


def _beyond(name: str, outcome: str) -> Callable[[Train], str]:
    """The remark of a number of steps that the run does not reach."""

    def remark(train: Train) -> str:
        return outcome if (getattr(train, name) or 0) > train.steps else ""

    return remark


def warmup_steps(train: Train) -> int:
    """Steps of warm-up, however it was given."""
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
    """How long and how hard to train; every recipe has this section."""

    steps: int = 100
    """Optimizer steps of the whole schedule."""
    stop_after: int | None = remarked(None, _beyond("stop_after", "the schedule ends before it"))
    """End this invocation after so many steps; the schedule stays as long as ``steps`` says."""
    global_batch: int = 8
    """Samples per optimizer step, over all ranks and micro batches."""
    micro_batch: int = 4
    """Samples per forward and backward of one rank."""
    lr: float = 1e-3
    """Peak learning rate."""
    min_lr: float = remarked(0.0, _rising, always=True)
    """Learning rate at the end of a schedule that falls."""
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
    """How much of the first and the second moment each step keeps."""
    eps: float = 1e-8
    """Added to the root of the second moment, against a division by zero."""
    trust_clip: float = 0.0
    """Largest ratio of a weight's norm to its update's that LAMB scales by; 0: no limit."""
    clip: float = 1.0
    """Largest global gradient norm; 0 switches clipping off. It is also LAMB's first step."""
    precision: Precision = "fp32"
    """``bf16_mixed``: fp32 weights under autocast; ``bf16``: bf16 weights and gradients; ``fp8``: as ``bf16_mixed``,
    but the blocks multiply in 8 bits by torchao (CUDA from Ada on; emulated on a CPU, for tests)."""
    activation_checkpointing: bool = False
    """Recompute each block in backward instead of keeping its activations."""
    compile: bool = False
    """Compile the model with ``torch.compile``: block by block, which takes the time of one block; as a whole on a CPU,
    on Neuron, and where the model names no blocks. A CPU compiles for minutes and is seldom faster after it."""
    seed: int = 1234
    """Source of the initial weights, the order of the samples, dropout and stochastic rounding."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, or any device that ``torch.accelerator`` knows (``neuron``, ``hpu``, ...)."""
    log_every: int = 10
    """Steps per line of metrics.jsonl and of the console."""
    log_format: str = "auto"
    """Lines of the console. ``compact``: step, loss, learning rate, gradient norm, speed, time left and memory in 80
    columns; or a format of the recipe (``megatron`` and ``neuron`` write the words of those projects' logs). ``auto``:
    the recipe's own line, if it has one, else ``compact``."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Where else metrics are shown, beside metrics.jsonl; settings of a tracker are ``tracker.NAME.setting``."""
    eval_every: int = remarked(0, _beyond("eval_every", "the run ends before it; it evaluates at its start and end"))
    """Steps between evaluations; 0 evaluates never."""
    eval_samples: int = 64
    """Samples per evaluation: the first so many of the validation split, the same each time."""
    save_every: int = remarked(0, _beyond("save_every", "the run ends before it; it saves at its end alone"))
    """Steps between checkpoints; 0 saves only at the end."""
    save_minutes: float = 0.0
    """Minutes between checkpoints, beside ``save_every``; 0 does not look at the clock."""
    check_replicas_every: int = 0
    """Steps between comparisons, bit by bit, of what several ranks hold copies of (weights, optimizer states, buffers);
    the run ends where copies differ. 0 compares only before a checkpoint."""
    check_replicas_at_save: bool = True
    """Compare the copies before each checkpoint is written, so that none is made of copies that have drifted apart."""
    keep: int = 2
    """Checkpoints to keep, newest first; 0 keeps all."""
    keep_best: bool = True
    """Keep the one of the lowest validation loss too, among those that were saved where the run evaluated."""
    on_divergence: OnDivergence = "stop"
    """Handling of a step whose loss or gradient norm is not finite, or whose norm is beyond ``spike_sigma``. ``stop``:
    the run ends as soon as it is logged or saved. ``skip``: it is not applied, its samples are named, and the schedule
    waits for the next one. ``rollback``: the run continues from the last good checkpoint, with the samples after the
    bad ones. Both read loss and norm on the host in each step."""
    spike_sigma: float = 0.0
    """Take a norm for divergence that is so many standard deviations above the mean of the last 100 logged ones; 0:
    only one that is not finite."""
    resume: str = "auto"
    """``auto``: from the newest whole checkpoint of the run folder, if there is one; ``none``: from the beginning;
    ``step-N``: from this checkpoint of the run folder, once; later ones are set aside; a path: where the folder has no
    checkpoint yet, from this one of another run."""
    init_from: str | None = None
    """Where a new run takes its first weights from, and nothing else: a run folder, a checkpoint folder or file of any
    format, or a Hugging Face folder. Optimizer, schedule and data begin anew. A run that continues does not read it.
    ``required``: there must be one, and the variant does not know which."""
    accept: str | None = None
    """Accepts one difference between the recorded data or tokenizer and the present ones: the word that the message
    about it names. It is recorded in job.yaml and results.json."""
    golden: str | None = None
    """A run folder, a metrics.jsonl or a file with one loss a line: the loss of every step that it has is compared with
    the run's, and the run ends at the first that is too far off."""
    golden_tolerance: float = remarked(0.02, _without_golden)
    """How far off a loss may be, as a part of the one in ``golden``."""
    timeout: float = 600.0
    """Seconds that a rank may wait for the others, or for the next batch, before the run is ended as dead."""
    on_hang: str | None = None
    """A shell command that one rank runs when the run is ended as dead, to alert somebody; it may take 8 seconds, and
    ``RECIPE_HANG_RANKS``, ``_HOSTS``, ``_KIND``, ``_STEP``, ``_MESSAGE`` and ``_LOGS`` tell it what is known."""
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
            if isinstance(value, int) and abs(value) >= 1 << 63  # which no counter or generator holds
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
        """The checkpoint of another run that ``resume`` names, if it does."""
        return None if self.resume in ("auto", "none") or self.resume_step is not None else self.resume

    @property
    def resume_step(self) -> int | None:
        """The step of the run's own checkpoint that ``resume`` names, if it does."""
        number = self.resume.removeprefix("step-")
        return int(number) if number != self.resume and number.isdecimal() else None

    def for_run(self, world_size: int, train_samples: int | None) -> Train:
        """Return the settings of a run on ``world_size`` processes with ``train_samples`` samples (None: not known).

        A recipe may bring a subclass with settings of its own, from which others follow: steps from epochs, say.
        """
        return self

    def checkpoints_at_once(self) -> int:
        """Most checkpoints that exist at once; the last step is saved even where ``save_every`` does not fall on it."""
        steps = min(self.steps, self.stop_after or self.steps)
        saved = -(-steps // self.save_every) if self.save_every else 1
        best = int(self.keep_best and self.eval_every > 0)
        return min(saved, self.keep + best + 1) if self.keep else saved

    def _optimizer_problems(self) -> list[str]:
        """Settings of the optimizer that exclude each other."""
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
