"""Additional files of an export for Hugging Face: the end-of-text token, generation_config.json and a model card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.checkpoint.formats.hf_config import CONFIG, read_hf_config
from recipe_core.checkpoint.locate import StoredCheckpoint
from recipe_core.checkpoint.match.provenance import Provenance
from recipe_core.files.documents import DocumentError, parse_json, read_text

CARD, GENERATION = "README.md", "generation_config.json"
_TASKS = {
    "LMHeadModel": "text-generation",
    "ForCausalLM": "text-generation",
    "ForPreTraining": "fill-mask",
    "Classification": "text-classification",
}
"""Hugging Face task by the suffix of the architecture's name."""


def with_export_files(
    files: Mapping[str, str], source: StoredCheckpoint, provenance: Provenance, step: int
) -> dict[str, str]:
    """Return ``files`` with the missing ones of the three; existing ones are unchanged."""
    config = read_hf_config(files)
    if config is None:
        return dict(files)
    task = next((task for end, task in _TASKS.items() if str(config.get("architectures", "")).find(end) >= 0), "")
    texts = dict(files)
    end = _end_of_text(files)
    if task == "text-generation" and end is not None and config.get("eos_token_id") is None:
        ends = {"bos_token_id": end, "eos_token_id": end}
        texts[CONFIG] = json.dumps({**config, **ends}, indent=2, sort_keys=True) + "\n"
        texts.setdefault(GENERATION, json.dumps({**ends, "pad_token_id": end}, indent=2) + "\n")
    texts.setdefault(CARD, _card(source, provenance, step, config, task))
    return texts


def _end_of_text(files: Mapping[str, str]) -> int | None:
    try:
        token = parse_json(files["tokenizer_config.json"])["eos_token"]
        added = parse_json(files["tokenizer.json"])["added_tokens"]
        return next((int(entry["id"]) for entry in added if entry["content"] == token), None)
    except (DocumentError, KeyError, TypeError, ValueError):
        return None


def _card(source: StoredCheckpoint, provenance: Provenance, step: int, config: Mapping[str, Any], task: str) -> str:
    head = ["---", "library_name: transformers", *([f"pipeline_tag: {task}"] if task else []), "---"]
    name = provenance.sections.get("recipe", config.get("model_type", "model")) if provenance.sections else "model"
    facts = [f"| {label} | {value} |" for label, value in _facts(source, provenance, step, config)]
    licence = "Licence: not stated. Whoever publishes this model chooses one that its data allows."
    return "\n".join([*head, "", f"# {name}", "", "| | |", "|---|---|", *facts, "", licence, ""])


def _facts(
    source: StoredCheckpoint, provenance: Provenance, step: int, config: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    yield "architecture", ", ".join(config.get("architectures") or [str(config.get("model_type"))])
    sections = provenance.sections or {}
    train, data = sections.get("train", {}), sections.get("data", {})
    if "variant" in sections:
        yield "variant", f"`{sections['recipe']}:{sections['variant']}`"
    if data:
        settings = {key: value for key, value in data.items() if key != "use" and value not in (None, [], "")}
        yield "data", f"{data.get('use')}: {', '.join(f'`{key}={value}`' for key, value in settings.items())}"
    yield "steps", f"{step:,}" + (f" of {train['steps']:,}" if train.get("steps") else "")
    if train:
        names = ("global_batch", "lr", "schedule", "optimizer", "precision", "seed")
        yield "training", ", ".join(f"`{name}={train[name]}`" for name in names if name in train)
    if source.manifest and source.manifest.val_loss is not None:
        yield "validation loss", f"{source.manifest.val_loss:.4f}"
    if (loss := _training_loss(source, step)) is not None:
        yield "training loss", f"{loss:.4f}"


def _training_loss(source: StoredCheckpoint, step: int) -> float | None:
    try:
        results = parse_json(read_text(source.path.parents[1] / "results.json"))
        return float(results["loss"]) if results["step"] == step else None
    except (OSError, DocumentError, LookupError, TypeError, ValueError):
        return None
