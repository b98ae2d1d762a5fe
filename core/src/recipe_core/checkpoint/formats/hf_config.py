"""Helpers for Hugging Face's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recipe_core.errors import CheckpointError

CONFIG = "config.json"


def read_hf_config(files: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the settings in config.json, which the format has checked to be a JSON object; None if there is none."""
    return json.loads(files[CONFIG]) if CONFIG in files else None


def kind_of(files: Mapping[str, str]) -> str:
    """Return the ``model_type`` in config.json; empty if there is none."""
    return str((read_hf_config(files) or {}).get("model_type") or "")


def require_hf_values(config: Mapping[str, Any], fixed: Mapping[str, Any], kind: str, model: str) -> None:
    """Require the values of settings that a native model does not support otherwise.

    Args:
        config: the settings of config.json.
        fixed: required values; settings that are missing in ``config`` count as equal.
        kind: the kind of foreign model, for the message.
        model: the native model, for the message.

    Raises:
        CheckpointError: a setting has another value.
    """
    unsupported = [
        f"{key} is {config[key]!r} and not {value!r}" for key, value in fixed.items() if config.get(key, value) != value
    ]
    if unsupported:
        raise CheckpointError(f"{CONFIG}: a {kind} that {model} cannot be: {'; '.join(unsupported)}")


def hf_settings(config: Mapping[str, Any], names: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Return native settings from config.json; ``names`` maps native to foreign names.

    Raises:
        CheckpointError: a setting is missing.
    """
    try:
        return {native: config[foreign] for native, foreign in names.items()}
    except KeyError as error:
        raise CheckpointError(f"{CONFIG}: lacks {error}, which every {kind}'s has") from error
