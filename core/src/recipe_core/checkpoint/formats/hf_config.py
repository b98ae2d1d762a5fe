"""Readings of Hugging Face's config.json that every model needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recipe_core.errors import CheckpointError

CONFIG = "config.json"


def read_hf_config(files: Mapping[str, str]) -> dict[str, Any] | None:
    """The settings in config.json, which the format has found to be an object of JSON; None where there is none."""
    return json.loads(files[CONFIG]) if CONFIG in files else None


def kind_of(files: Mapping[str, str]) -> str:
    """The type of model that config.json names; empty where there is none, or it names none."""
    return str((read_hf_config(files) or {}).get("model_type") or "")


def require_hf_values(config: Mapping[str, Any], fixed: Mapping[str, Any], kind: str, model: str) -> None:
    """Refuse what a model of ours does not let choose.

    Args:
        config: the settings of config.json.
        fixed: what they must be; where ``config`` is silent, they are.
        kind: what sort of model it is, for the message.
        model: ours, that cannot be it.

    Raises:
        CheckpointError: something is set otherwise.
    """
    other = [
        f"{key} is {config[key]!r} and not {value!r}" for key, value in fixed.items() if config.get(key, value) != value
    ]
    if other:
        raise CheckpointError(f"{CONFIG}: a {kind} that {model} cannot be: {'; '.join(other)}")


def hf_settings(config: Mapping[str, Any], names: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Settings of ours from those of config.json: ``names`` is ``{ours: theirs}``.

    Raises:
        CheckpointError: one is missing.
    """
    try:
        return {ours: config[theirs] for ours, theirs in names.items()}
    except KeyError as error:
        raise CheckpointError(f"{CONFIG}: lacks {error}, which every {kind}'s has") from error
