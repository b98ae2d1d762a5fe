"""Devices, drivers, the network between machines, disks and limits of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recipe_core.engine.machine.packages import instance
from recipe_core.files import home
from recipe_core.hooks.finding import Finding
from recipe_core.launch.cores import cpu_quota, usable_cores
from recipe_core.train.start.check import machine

_DEVICES, _NETWORK, _LIMITS, _DISK = "Devices", "Network between machines", "Limits", "Disk"
_ROOT = Path("/")
_EFA = ("trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3.48xlarge")
_MIN_FILES = 4096  # open files: sockets between ranks, and files of checkpoint shards
_LOW_SPACE, _MIN_SHARED_MEMORY = 5_000_000_000, 64_000_000


def machine_findings(runs: Path) -> Iterator[Finding]:
    """Yield the findings about this machine; ``runs``: the folder of runs."""
    yield from _processor()
    yield from _nvidia()
    yield from _efa()
    yield from _limits()
    yield from _disks(runs)


def _processor() -> Iterator[Finding]:
    available, kind = machine.memory("cpu"), instance()
    memory = f", {machine.scaled(available.total, 'B')} of memory" if available else ""
    quota = cpu_quota()
    limited = "" if quota is None else f" (the container's quota of cores: {quota:g})"
    cores = f"{usable_cores()} processor cores{limited}"
    yield Finding(_DEVICES, "ok", f"{cores}{memory}{f' ({kind})' if kind else ''}")


def _nvidia() -> Iterator[Finding]:
    command = shutil.which("nvidia-smi")
    if command is None:
        yield Finding(_DEVICES, "note", "no NVIDIA driver (nvidia-smi is not there)")
        return
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding(_DEVICES, "broken", f"nvidia-smi gives no answer ({error})", "restart the machine or its driver")
        return
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        yield Finding(
            _DEVICES, "broken", f"nvidia-smi fails: {lines[0] if lines else done.returncode}",
            "install the driver for this kernel, or restart the machine after its update",
        )  # fmt: skip
        return
    gpus = [line.split(", ") for line in done.stdout.strip().splitlines()]
    names = ", ".join(sorted({name for name, *_ in gpus}))
    yield Finding(_DEVICES, "ok", f"{len(gpus)} x {names}, driver {gpus[0][-1] if gpus else 'unknown'}")


def _efa() -> Iterator[Finding]:
    """AWS's network adapter; only multi-node runs need it."""
    adapters = [path for path in sorted(_ROOT.glob("sys/class/infiniband/*")) if _driver(path) == "efa"]
    if adapters:
        yield Finding(_NETWORK, "ok", f"{len(adapters)} EFA devices")
        if shutil.which("fi_info") is None and not (_ROOT / "opt/amazon/efa/bin/fi_info").exists():
            yield Finding(_NETWORK, "broken", "EFA's libfabric is not installed", "run Amazon's EFA installer")
        if _soft_limit("RLIMIT_MEMLOCK") not in (None, -1):
            yield Finding(
                _NETWORK, "warning", "the limit of locked memory is not `unlimited`, which EFA needs",
                "put `* - memlock unlimited` into /etc/security/limits.conf and log in again",
            )  # fmt: skip
    elif instance() in _EFA:
        yield Finding(
            _NETWORK, "warning", f"this {instance()} was started without EFA, which runs over several need",
            "start it with EFA network interfaces and a security group that lets them speak to each other",
        )  # fmt: skip
    else:
        yield Finding(_NETWORK, "note", "no EFA: only Trainium runs over several machines need it")


def _limits() -> Iterator[Finding]:
    files = _soft_limit("RLIMIT_NOFILE")
    if files is not None and files != -1:
        few = files < _MIN_FILES
        yield Finding(
            _LIMITS, "warning" if few else "ok", f"{files:,} open files{', few for many ranks' if few else ''}",
            "ulimit -n 65535, or `* - nofile 65535` in /etc/security/limits.conf" if few else "",
        )  # fmt: skip
    processes = _soft_limit("RLIMIT_NPROC")
    if processes is not None and processes != -1 and processes < _MIN_FILES:
        yield Finding(_LIMITS, "warning", f"{processes:,} processes and threads, which is few", "ulimit -u 65535")
    for name, subject, option in (("RLIMIT_AS", "address space", "v"), ("RLIMIT_FSIZE", "the size of a file", "f")):
        limit = _soft_limit(name)
        if limit is not None and limit != -1:
            text = f"{subject} is limited to {machine.scaled(limit, 'B')}"
            yield Finding(_LIMITS, "warning", text, f"ulimit -{option} unlimited")


def _disks(runs: Path) -> Iterator[Finding]:
    folders = {
        "runs": runs,
        "cache (RECIPE_CACHE)": home(),
        "temporary files (TMPDIR)": Path(tempfile.gettempdir()),
    }
    for label, folder in folders.items():
        existing = _existing(folder.absolute())
        free = shutil.disk_usage(existing).free
        text = f"{label}: {machine.scaled(free, 'B')} free for {folder}"
        if not os.access(existing, os.W_OK):
            yield Finding(_DISK, "broken", f"{label}: {folder} cannot be written", "choose another folder")
        elif free < _LOW_SPACE:
            yield Finding(_DISK, "warning", text, "make room; `recipe check` says what a run needs")
        else:
            yield Finding(_DISK, "ok", text)
    shared = _ROOT / "dev/shm"
    if shared.exists() and shutil.disk_usage(shared).total < 2 * _MIN_SHARED_MEMORY:
        size = machine.scaled(shutil.disk_usage(shared).total, "B")
        yield Finding(_DISK, "warning", f"shared memory (/dev/shm) has {size}", "in a container: --shm-size=8g or more")


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _driver(device: Path) -> str:
    """The driver of a device in /sys; EFA devices are also recognised by the name that the installer gives them."""
    link = device / "device" / "driver"
    if link.exists():
        return link.resolve().name
    return "efa" if re.match(r"(rdmap|efa)", device.name) else ""


def _soft_limit(name: str) -> int | None:
    """A limit of this process; -1: unlimited, None: unknown on this platform."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    number = getattr(resource, name, None)
    if number is None:
        return None
    soft = resource.getrlimit(number)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft
