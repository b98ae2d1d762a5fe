"""Environment variables for PyTorch/XLA and AWS Neuron over it. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core import Job, Variable
from recipe_core.engine.machine.environment import network
from recipe_core.engine.neuron import stack
from recipe_core.engine.select import divides
from recipe_xla.machine import one_process


def variables(job: Job, processes: int, several_machines: bool) -> Iterator[Variable]:
    """See :class:`recipe_core.hooks.specs.EngineSpec`."""
    if divides(job.layout) and one_process(job.layout):
        yield Variable("CPU_NUM_DEVICES", str(processes), "devices that XLA makes of a CPU")
    if stack.at_hand(job.train.device, "xla") is None:
        return
    yield Variable(
        "NEURON_CC_FLAGS", "--model-type=transformer --retry_failed_compilation",
        "the compiler optimises for transformers, and tries again what failed in an earlier run",
    )  # fmt: skip
    yield Variable("NEURON_FUSE_SOFTMAX", "1", "a faster softmax in attention")
    if job.train.precision == "bf16":
        yield Variable("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1", "bf16 weights lose small updates otherwise")
    yield Variable("NEURON_RT_EXEC_TIMEOUT", "600", "seconds; the default of 30 is too short for a first step")
    yield Variable("NEURON_NUM_RECENT_MODELS_TO_KEEP", "3", "graphs on the device; more fill its memory")
    yield Variable("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "50", "gradients are reduced in pieces of this size")
    yield Variable("MALLOC_ARENA_MAX", "64", "keeps the host's memory from growing with every thread")
    if several_machines:
        yield from network()
