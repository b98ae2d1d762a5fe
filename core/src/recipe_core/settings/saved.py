"""Files of settings, as `recipe show` prints and runs save them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.errors import ConfigError
from recipe_core.files import require_local
from recipe_core.files.documents import DocumentError, read_yaml
from recipe_core.hooks.registry import Registry, distributions

if TYPE_CHECKING:
    from recipe_core.settings.job import Job


def is_file(registry: Registry, target: str) -> bool:
    """True if ``target`` is a path; ``plugin/recipe`` is not one, unless there is such a file."""
    if target.endswith((".yaml", ".yml")):
        return True
    owner, slash, _ = target.partition(os.sep)
    return bool(slash) and (owner not in registry.plugins or Path(target).exists())


def read_file(target: str | Path) -> Mapping[str, object]:
    """Return the content of a file that `recipe show` wrote.

    Raises:
        ConfigError: it cannot be read, or holds no settings.
    """
    require_local(target, "FILE")
    path = Path(target)
    try:
        data = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except DocumentError as error:
        raise ConfigError(f"{path}: is not YAML ({error})") from error
    if data is None:
        raise ConfigError(f"{path}: is empty; expected settings, as `recipe show NAME > {path.name}` writes them")
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}: expected settings as `recipe show NAME` prints them, got {type(data).__name__}")
    return data


def plugin_record(job: Job) -> dict[str, str]:
    """Return the plugin of each part, with its distribution: ``megatron_gpt, recipe-megatron-gpt 0.1.0``."""
    versions = distributions()
    return {
        kind: f"{owner}, {versions[owner]}" if owner in versions else owner
        for kind, owner in job.plugins.items()
        if owner
    }
