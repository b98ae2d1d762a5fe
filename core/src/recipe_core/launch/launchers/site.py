"""The site profile: one YAML file about the machines that runs and parts of preparations are submitted to."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError, did_you_mean
from recipe_core.files.documents import DocumentError, read_yaml
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs.executor import ExecutorSpec
from recipe_core.hooks.specs.launcher import Launcher
from recipe_core.settings.fill import fill

SITE = "RECIPE_SITE"
"""Environment variable: path of the site profile."""


def negative(section: object, *names: str) -> list[str]:
    """Return a problem for each setting of ``names`` that is below 0."""
    values = {name: getattr(section, name) for name in names}
    return [f"{name}: expected 0 or more, got {value}" for name, value in values.items() if value < 0]


@dataclass(frozen=True, kw_only=True)
class Site:
    """Settings of a site profile, which also has a section for each launcher and executor that is used there."""

    device_memory_gb: float = 0.0
    """Memory of one device (10^9 bytes); 0: unknown."""
    devices_per_node: int = 0
    """Devices of one node, the default of ``--processes-per-node``; 0: unknown."""
    node_memory_gb: float = 0.0
    """Main memory of one node (10^9 bytes); 0: unknown."""
    disk_gb: float = 0.0
    """Free space for run folders on the target (10^9 bytes); 0: unknown."""
    program: str = ""
    """The command ``recipe`` on the target, quoted as for a shell; by default this Python's under Slurm, else
    ``recipe``."""
    setup: str = field(default="", metadata={"remote": True})
    """Shell commands before the run, such as ``module load cuda``; may have several lines."""
    environment: Mapping[str, str] = field(default_factory=dict, metadata={"remote": True})
    """Environment variables of each process, unless the target sets them."""

    def __post_init__(self) -> None:
        problems = negative(self, "device_memory_gb", "devices_per_node", "node_memory_gb", "disk_gb")
        problems += [
            f"environment: {name!r} is no name of a variable" for name in self.environment if not _is_name(name)
        ]
        try:
            shlex.split(self.program)
        except ValueError as error:
            problems.append(f"program: {self.program!r} cannot be divided into words ({error})")
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A site profile with the section of one launcher or executor."""

    site: Site = field(default_factory=Site)
    config: Any = None
    """Instance of the settings class of the launcher or executor; None if none was requested."""
    path: Path | None = None
    """Path of the profile; None if there is none."""


def read_profile(registry: Registry, of: Launcher | ExecutorSpec | None = None, path: Path | None = None) -> Profile:
    """Read the site profile; without one, all settings have their defaults.

    Args:
        registry: of the launchers and executors, whose names may be sections of the profile.
        of: the one whose section is returned as ``config``.
        path: ``--site``. By default ``$RECIPE_SITE``, else ``site.yaml`` in the user's folder of settings
            (``~/.config/recipe``), if there is such a file.

    Raises:
        ConfigError: the file cannot be read, or has invalid keys or values; one error names all of them.
    """
    place = path or _default_place()
    sections = dict(_read(place)) if place is not None else {}
    problems: list[str] = []
    users: list[Launcher | ExecutorSpec] = [registry.get("launcher", name) for name in registry.names("launcher")]
    users += [registry.get("executor", name) for name in registry.names("executor")]
    configs: dict[tuple[str, type], Any] = {}
    for name, kind in dict.fromkeys((user.name, user.config) for user in users):
        section = sections.get(name)
        if section is not None and not isinstance(section, Mapping):
            problems.append(f"{name}: expected settings ({{name: value}}), got {section!r}")
        else:
            configs[name, kind] = fill(kind, section or {}, name, problems)
    named = list(dict.fromkeys(user.name for user in users))
    sections = {name: value for name, value in sections.items() if name not in named}
    known = [*Site.__dataclass_fields__, *named]
    for name in [name for name in sections if name not in Site.__dataclass_fields__]:
        problems.append(f"{name}: no such setting{did_you_mean(str(name), known)} (settings: {', '.join(known)})")
        del sections[name]
    site_problems: list[str] = []
    site = fill(Site, sections, "site", site_problems)
    problems += [problem.removeprefix("site.") for problem in site_problems]
    if problems or site is None:
        raise ConfigError.of(f"site profile {place}: {problem}" for problem in problems)
    return Profile(site=site, config=configs[of.name, of.config] if of else None, path=place)


def _default_place() -> Path | None:
    import platformdirs

    named = os.environ.get(SITE)
    if named:
        return Path(named)
    usual = Path(platformdirs.user_config_dir("recipe")) / "site.yaml"
    return usual if usual.exists() else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = read_yaml(path)
    except OSError as error:
        raise ConfigError(
            f"site profile {path}: cannot be read ({error.strerror or error}); --site FILE or {SITE} names it"
        ) from error
    except DocumentError as error:
        raise ConfigError(f"site profile {path}: is not YAML ({error})") from error
    if data is not None and not isinstance(data, Mapping):
        raise ConfigError(f"site profile {path}: expected settings (name: value), got {type(data).__name__}")
    return data or {}


def _is_name(text: str) -> bool:
    return text.isidentifier() and text.isascii()
