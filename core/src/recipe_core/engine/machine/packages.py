"""The packages that are installed, and the name of the machine. Installed files tell; nothing is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PLACEHOLDERS = ("torch-neuronx", "neuronx-distributed", "neuronx-cc")
"""Packages of AWS's own index; those of the same names on the public index are empty."""

_SUBSTANCE = 20_000  # bytes of code; the placeholders have a hundred, the real ones megabytes
_PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    name: str
    version: str
    placeholder: bool
    """An empty package with one of AWS's names."""

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; zeros if the version does not begin with them."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)


def package(name: str) -> Package | None:
    """The installed distribution ``name``, or None."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return Package(name, found.version, name in PLACEHOLDERS and _is_empty(found))


def imports_choose_device() -> bool:
    """True if transformers chooses its device on import (with torch-xla): each process must import it by itself."""
    return find_spec("torch_xla") is not None


def instance() -> str:
    """The EC2 instance type by the hypervisor (``trn1.32xlarge``); elsewhere the vendor's product name, or ``""``."""
    try:
        return _PRODUCT.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):  # hidden in a container or by another system
        return ""


def _is_empty(found: metadata.Distribution) -> bool:
    if '"editable"' in (found.read_text("direct_url.json") or ""):
        return False
    size = 0
    for file in found.files or ():
        if ".dist-info" in file.parts[0] or ".egg-info" in file.parts[0]:
            continue
        if file.suffix in (".so", ".pyd"):
            return False
        size += _size(file)
    return size < _SUBSTANCE


def _size(file: metadata.PackagePath) -> int:
    try:
        return Path(str(file.locate())).stat().st_size
    except OSError:
        return 0
