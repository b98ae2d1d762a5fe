"""Kubernetes: a TrainJob of Kubeflow Trainer, whose runtime for PyTorch gives torchrun its variables (PET_*).

It needs Trainer 2.3: 2.2 ignores the time that a pod has to save, and earlier releases ignore patches of a runtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.hooks.specs.launcher import Submission
from recipe_core.launch.launchers.site import negative
from recipe_core.launch.launchers.torchrun import as_yaml, node_script, refuse_secrets
from recipe_core.settings.fill import merge

FILE = "trainjob.yaml"
_LABEL = 63
"""Characters in a name of Kubernetes, RFC 1035."""


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """Section ``k8s`` of a site profile."""

    image: str = field(default="", metadata={"remote": True})
    """Container image that contains `recipe`, its plugins and torchrun; required."""
    namespace: str = ""
    """Namespace of the job; empty: that of kubectl's context."""
    runtime: str = "torch-distributed"
    """The ClusterTrainingRuntime, which must be one for PyTorch."""
    claim: str = ""
    """PersistentVolumeClaim for data and run folders, which all nodes mount; required."""
    mount: str = "/recipe"
    """Mount point of the volume; run folders are in its folder ``runs/``, and paths of the job begin with it."""
    gpu_resource: str = "nvidia.com/gpu"
    """Resource name of the devices."""
    gpus_per_process: int = 1
    """Devices for each process; 0: none are requested."""
    cpus_per_process: int = 0
    """Processor cores for each process; 0: none are requested."""
    node_memory_gb: int = 0
    """Main memory to request on each node (10^9 bytes); 0: none is requested."""
    resources: Mapping[str, str] = field(default_factory=dict)
    """Further resources of a node: ``rdma/hca: 1``."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables from Secrets: ``HF_TOKEN: hub/token`` is the key ``token`` of the Secret ``hub``."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the pods, as in TrainJob's runtimePatches: ``tolerations``, ``nodeSelector``,
    ``imagePullSecrets``, ``affinity``, ``serviceAccountName``, further ``volumes``."""

    def __post_init__(self) -> None:
        problems = negative(self, "gpus_per_process", "cpus_per_process", "node_memory_gb")
        if not PurePosixPath(self.mount).is_absolute():
            problems.append(f"mount: expected a path that begins with '/', got {self.mount!r}")
        problems += [
            f"secrets: {name}: expected SECRET/KEY, got {place!r}"
            for name, place in self.secrets.items()
            if not re.fullmatch(r"[a-z0-9.-]+/[\w.-]+", place)
        ]
        if "containers" in self.pod:
            problems.append("pod: containers are what the other settings describe; leave them out")
        if problems:
            raise ValueError("\n".join(problems))


def manifests(submission: Submission, config: Kubernetes) -> dict[str, str]:
    """Return the TrainJob as YAML; for an array, one for each run, as documents of one file.

    Raises:
        ConfigError: the site profile names no image or no volume.
    """
    missing = [f"k8s.{name}" for name in ("image", "claim") if not getattr(config, name)]
    if missing:
        raise ConfigError(
            f"site profile: {' and '.join(missing)} must be set for --to k8s: the container image with `recipe` in it, "
            "and the PersistentVolumeClaim for run folders"
        )
    refuse_secrets(
        submission, {"k8s.pod": str(dict(config.pod))}, "name the key of a Secret: k8s.secrets: {NAME: SECRET/KEY}"
    )
    jobs = [_train_job(submission, config, number) for number in range(max(1, submission.array))]
    return {FILE: as_yaml(jobs)}


def _train_job(submission: Submission, config: Kubernetes, number: int) -> dict[str, Any]:
    seed = f"seed-{number}" if submission.array else ""
    out = PurePosixPath(config.mount) / "runs" / submission.out.name / seed
    trainer: dict[str, Any] = {
        "image": config.image,
        "numNodes": submission.nodes,
        "numProcPerNode": submission.processes_per_node,
        "command": ["bash", "-c"],
        "args": [node_script(submission, str(out), "", number)],
    }
    if config.secrets:
        trainer["env"] = [_from_secret(name, place) for name, place in config.secrets.items()]
    if resources := _resources(submission, config):
        trainer["resourcesPerNode"] = {"limits": resources}
    spec: dict[str, Any] = {"runtimeRef": {"name": config.runtime}, "trainer": trainer}
    if submission.minutes:
        spec["activeDeadlineSeconds"] = submission.minutes * 60
    spec["runtimePatches"] = [_patch(submission, config)]
    namespace = {"namespace": config.namespace} if config.namespace else {}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _label(submission.out.name, seed), **namespace},
        "spec": spec,
    }


def _resources(submission: Submission, config: Kubernetes) -> dict[str, Any]:
    each = submission.processes_per_node
    amounts = {
        config.gpu_resource: config.gpus_per_process * each,
        "cpu": config.cpus_per_process * each,
        "memory": f"{config.node_memory_gb}G" if config.node_memory_gb else 0,
    }
    return {name: amount for name, amount in amounts.items() if amount} | dict(config.resources)


def _from_secret(name: str, place: str) -> dict[str, Any]:
    secret, _, key = place.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _patch(submission: Submission, config: Kubernetes) -> dict[str, Any]:
    mounts = [{"name": "recipe", "mountPath": config.mount}, {"name": "shared-memory", "mountPath": "/dev/shm"}]
    pod = merge(
        {
            "terminationGracePeriodSeconds": submission.stop_seconds,
            "volumes": [
                {"name": "recipe", "persistentVolumeClaim": {"claimName": config.claim}},
                # The default of 64 MB is too little for NCCL and for data loaders.
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
                *config.pod.get("volumes", ()),
            ],
            "containers": [{"name": "node", "volumeMounts": mounts}],
        },
        {name: value for name, value in config.pod.items() if name != "volumes"},
    )
    replicated = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": "recipe-submit",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }


def _label(name: str, ending: str) -> str:
    """The name of the TrainJob: lower-case letters, digits and ``-``, beginning with a letter."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    text = text if re.match(r"[a-z]", text) else f"recipe-{text}".rstrip("-")
    room = _LABEL - (len(ending) + 1 if ending else 0)
    return "-".join(filter(None, [text[:room].rstrip("-"), ending]))
