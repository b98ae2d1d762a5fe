"""SkyPilot: a task for `sky launch` or `sky jobs launch`, in which torchrun starts the ranks of each node."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.hooks.specs.launcher import Submission
from recipe_core.launch.launchers.site import negative
from recipe_core.launch.launchers.torchrun import as_yaml, node_script, refuse_secrets

FILE = "sky.yaml"
_PORT = 29500
_NODES = (
    '--nnodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" '
    f'--master-addr "$(head -n 1 <<< "$SKYPILOT_NODE_IPS")" --master-port {_PORT} '
)


@dataclass(frozen=True, kw_only=True)
class Sky:
    """Section ``sky`` of a site profile."""

    accelerators: str = ""
    """Kind of device, as `sky gpus list` names it: ``H100``. Each process of a node gets one."""
    infra: str = ""
    """Infrastructure of the machines: ``aws/us-east-1``, ``k8s``; empty: SkyPilot chooses."""
    use_spot: bool = False
    """Use spot machines, which may be reclaimed; `sky jobs launch` then restarts the run elsewhere."""
    max_restarts: int = 3
    """Restarts of a managed job after exit codes other than 75; after 75, it is always restarted."""
    volume: str = field(default="", metadata={"remote": True})
    """Name of a SkyPilot volume for data and run folders, which all nodes mount; required for several nodes."""
    bucket: str = field(default="", metadata={"remote": True})
    """Name of a bucket for data and the run folder of a single node, instead of a volume. Files are written to the
    node's disk and uploaded in the background: the last ones may be missing if the node is lost."""
    mount: str = "/recipe"
    """Mount point of volume or bucket; run folders are in its folder ``runs/``, and paths of the job begin with it."""
    secrets: tuple[str, ...] = ()
    """Names of variables that ``sky`` reads from the calling shell: ``--secret HF_TOKEN``."""
    install: str = field(default="", metadata={"remote": True})
    """Shell commands that install `recipe` and its plugins on a new machine, once."""

    def __post_init__(self) -> None:
        problems = negative(self, "max_restarts")
        if not PurePosixPath(self.mount).is_absolute():
            problems.append(f"mount: expected a path that begins with '/', got {self.mount!r}")
        if problems:
            raise ValueError("\n".join(problems))


def task(submission: Submission, config: Sky) -> dict[str, str]:
    """Return the task as YAML.

    Raises:
        ConfigError: the site profile names no place for run folders, or one that several nodes cannot share; an array
            is requested; a value looks like a secret.
    """
    if not config.volume and not config.bucket:
        raise ConfigError(
            "site profile: sky.volume (or sky.bucket, for one node) must be set for --to sky: run folders"
        )
    if submission.nodes > 1 and not config.volume:
        raise ConfigError(
            f"site profile: sky.bucket: {submission.nodes} nodes share a run folder, and in a bucket none sees at once "
            "what another one writes; set sky.volume, or take --nodes 1"
        )
    refuse_secrets(
        submission, {"sky.install": config.install}, "name the variable in sky.secrets, and call sky with --secret NAME"
    )
    if submission.array:
        raise ConfigError(
            "--array: a file of SkyPilot with several tasks runs them one after the other; submit each seed by itself, "
            "with train.seed=N"
        )
    out = PurePosixPath(config.mount) / "runs" / submission.out.name
    return {FILE: as_yaml([_task(submission, config, str(out))])}


def _task(submission: Submission, config: Sky, out: str) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if config.infra:
        resources["infra"] = config.infra
    if config.accelerators:
        resources["accelerators"] = f"{config.accelerators}:{submission.processes_per_node}"
    if config.use_spot:
        resources["use_spot"] = True
    resources["job_recovery"] = {"max_restarts_on_errors": config.max_restarts, "recover_on_exit_codes": [75]}
    setup = {"setup": config.install.rstrip() + "\n"} if config.install else {}
    secrets = {"secrets": dict.fromkeys(config.secrets)} if config.secrets else {}
    bucket = {"file_mounts": {config.mount: {"name": config.bucket, "mode": "MOUNT_CACHED"}}}
    options = f"{_NODES}--nproc-per-node {submission.processes_per_node} "
    return {
        "name": submission.name,
        "num_nodes": submission.nodes,
        "resources": resources,
        **({"volumes": {config.mount: config.volume}} if config.volume else bucket),
        **secrets,
        **setup,
        "run": node_script(submission, out, options),
    }
