"""Environment variables that change what a run computes, how fast, or whether it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from recipe_core.cli.doctor.finding import Finding
from recipe_core.engine import stack
from recipe_core.engine.environment import REFUSED, is_on
from recipe_core.errors import LaunchError
from recipe_core.launch.worker import worker

_TOPIC = "Environment variables"


def variable_findings(environment: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """What is set and matters, in ``environment`` (this process' own)."""
    env = os.environ if environment is None else environment
    found = [*_refused(env), *_ranks(env), *_compiler(env), *_devices(env)]
    yield from found or [Finding(_TOPIC, "ok", "none is set that would change a run unasked")]


def _refused(env: Mapping[str, str]) -> Iterator[Finding]:
    for name in REFUSED:
        if is_on(env, name):
            yield Finding(
                _TOPIC, "broken", f"{name}={env[name]}: it makes bf16 of all fp32, unseen; runs refuse it",
                f"unset {name}; take train.precision=bf16 (or bf16_mixed), which says what it does",
            )  # fmt: skip


def _ranks(env: Mapping[str, str]) -> Iterator[Finding]:
    try:
        me = worker(env)
    except LaunchError as error:
        yield Finding(_TOPIC, "broken", str(error))
        return
    if me is not None:
        text = f"this process is rank {me.rank} of {me.world_size} ({me.launcher})"
        yield Finding(_TOPIC, "note", f"{text}: `recipe run` here would wait for the others")


def _compiler(env: Mapping[str, str]) -> Iterator[Finding]:
    if is_on(env, "NEURON_EXTRACT_GRAPHS_ONLY"):
        yield Finding(
            _TOPIC, "broken", "NEURON_EXTRACT_GRAPHS_ONLY is set: nothing is computed, and every loss is wrong",
            "unset it; `recipe precompile` sets it for as long as it needs it",
        )  # fmt: skip
    if is_on(env, "TORCH_NEURONX_COMPILE_ONLY"):
        yield Finding(
            _TOPIC, "broken", "TORCH_NEURONX_COMPILE_ONLY is set: graphs are compiled and nothing is computed",
            "unset it; `recipe precompile` sets it for as long as it needs it",
        )  # fmt: skip
    if "BUCKET_CAP_MB" in env:
        yield Finding(
            _TOPIC, "warning", "BUCKET_CAP_MB is no longer read", "set ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB instead"
        )
    if stack.neuron() == "native" and "NEURON_COMPILE_CACHE_URL" in env:
        yield Finding(
            _TOPIC, "warning", "NEURON_COMPILE_CACHE_URL is that of the stack over XLA",
            "the native stack keeps what it compiled in TORCH_NEURONX_NEFF_CACHE_DIR",
        )  # fmt: skip


def _devices(env: Mapping[str, str]) -> Iterator[Finding]:
    legacy, native = stack.neuron() == "legacy", stack.neuron() == "native"
    if "PJRT_DEVICE" in env and stack.package("torch-xla") is None:
        yield Finding(_TOPIC, "note", f"PJRT_DEVICE={env['PJRT_DEVICE']}: torch-xla, which reads it, is not installed")
    if legacy and env.get("PJRT_DEVICE", "NEURON") != "NEURON":
        yield Finding(
            _TOPIC,
            "warning",
            f"PJRT_DEVICE={env['PJRT_DEVICE']}: XLA will not use Trainium",
            "unset PJRT_DEVICE",
        )
    if native and env.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Finding(
            _TOPIC, "broken", "TORCH_DEVICE_BACKEND_AUTOLOAD=0: PyTorch does not find the device neuron", "unset it"
        )
    if "CUDA_VISIBLE_DEVICES" in env:
        shown = env["CUDA_VISIBLE_DEVICES"] or "none"
        yield Finding(_TOPIC, "note", f"CUDA_VISIBLE_DEVICES: only these GPUs are seen: {shown}")
    for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "USE_TORCH_XLA"):
        if name in env:
            yield Finding(_TOPIC, "note", f"{name}={env[name]}")
