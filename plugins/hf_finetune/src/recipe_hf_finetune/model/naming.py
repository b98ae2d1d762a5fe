"""Names of a classifier's tensors in folders of Hugging Face: its module has them itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recipe_core import Adapter, Naming, read_hf_config
from recipe_hf_finetune.settings import SequenceClassifier


class ClassifierNaming(Naming):
    """The naming ``hf`` of the model ``sequence_classifier``."""

    def adapter(self, config: SequenceClassifier) -> Adapter:
        """Unchanged names; the folder of the weights has its own config.json."""
        return Adapter()

    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> dict[str, Any]:
        """None of them is in a config.json: folders of other programs need ``--recipe``."""
        return {}

    def recorded(self, files: Mapping[str, str], config: SequenceClassifier) -> Mapping[str, Any] | None:
        """Nothing to compare of a config.json of a classifier; None for one of another model."""
        architectures = (read_hf_config(files) or {}).get("architectures") or [""]
        return {"source": config.source} if str(architectures[0]).endswith("ForSequenceClassification") else None

    def of_folder(self, config: SequenceClassifier, folder: Path) -> SequenceClassifier:
        """The sizes are those of the config.json in ``folder``."""
        return replace(config, source=str(folder)) if (folder / "config.json").is_file() else config
