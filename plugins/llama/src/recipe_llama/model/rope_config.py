"""Rotary positions in Hugging Face's config.json: ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` before
release 5 of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core import CheckpointError, require_hf_values
from recipe_llama.settings import Llama

_NAMES = {
    "factor": "rope_factor",
    "original_max_position_embeddings": "rope_original_positions",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "beta_fast": "rope_beta_fast",
    "beta_slow": "rope_beta_slow",
    "attention_factor": "rope_attention_factor",
}
_TAKEN: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
}
"""Parameters of each scaling."""
_REQUIRED = ("factor", "low_freq_factor", "high_freq_factor")
_DEFAULTS: dict[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}
_THETA = 10000.0
_FIXED = {"partial_rotary_factor": 1.0, "mscale": None, "mscale_all_dim": None, "truncate": True}
"""Parameters that the model fixes."""


def read_rope(config: Mapping[str, Any], kind: str, positions: int) -> dict[str, Any]:
    """Settings of the rotary positions in config.json; ``positions`` is its ``max_position_embeddings``.

    Raises:
        CheckpointError: a scaling or a parameter that the model lacks, or one that the scaling needs is missing.
    """
    where = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    given = {key: value for key, value in (config.get(where) or {}).items() if value is not None}
    scaling = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)  # some files have both names
    theta = given.pop("rope_theta", config.get("rope_theta"))
    if scaling not in _TAKEN:
        known = ", ".join(_TAKEN)
        raise CheckpointError(f"config.json: {where}: rope_type is {scaling!r}; the model llama has {known}")
    require_hf_values(given, _FIXED, kind, "llama")
    given = {key: value for key, value in given.items() if key not in _FIXED}
    if unknown := [key for key in given if key not in _TAKEN[scaling]]:
        raise CheckpointError(f"config.json: {where}: {', '.join(unknown)}: the model llama lacks it in {scaling!r}")
    if missing := [key for key in _TAKEN[scaling] if key in _REQUIRED and key not in given]:
        raise CheckpointError(f"config.json: {where}: lacks {', '.join(missing)}, which {scaling!r} needs")
    values = {**_DEFAULTS, "original_max_position_embeddings": positions, **given}
    settings = {_NAMES[key]: values[key] for key in _TAKEN[scaling]}
    return {"rope_type": scaling, "rope_theta": _THETA if theta is None else theta, **settings}


def rope_parameters(config: Llama) -> dict[str, Any]:
    """The keys of config.json for ``config``, for releases before and since 5."""
    scaling = {key: getattr(config, _NAMES[key]) for key in _TAKEN[config.rope_type]}
    scaling = {key: value for key, value in scaling.items() if value is not None}
    if "original_max_position_embeddings" in _TAKEN[config.rope_type]:
        scaling["original_max_position_embeddings"] = config.original_positions
    scaling["rope_type"] = config.rope_type
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_type == "default" else scaling,
        "rope_parameters": {**scaling, "rope_theta": config.rope_theta},
    }
