"""Adapters under the names of Hugging Face's peft, as ``PeftModel.from_pretrained`` reads them.

peft adapts the layers of the model in transformers. There, a weight may be transposed (GPT-2's ``Conv1D``), have its
rows in another order (queries, keys and values), or be several weights. The rows of ``B`` follow those of the weight,
and ``A`` stays as it is; a weight that is several there gives each of them the same ``A``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from recipe_core.checkpoint.adapter import Adapter, Link
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.errors import CheckpointError
from recipe_core.train.building.transforms.lora import A, B, adapted
from recipe_core.train.building.transforms.settings import Lora

_PREFIX = "base_model.model."


@dataclass(frozen=True)
class _Layer:
    """A linear layer of the model in transformers."""

    name: str
    rows: Tensor | None
    """Rows of our weight, in the order that it has them; None: all, in our order."""
    transposed: bool


def peft_adapter(config: Lora, weights: Mapping[str, Lazy], adapter: Adapter) -> Adapter:
    """Return the names of the adapters in peft, where ``adapter`` has those of the model in transformers.

    Raises:
        CheckpointError: peft cannot express them.
    """
    if config.trained:
        raise CheckpointError(
            f"peft's folder holds adapters alone, and transform.lora.trained={','.join(config.trained)} trained "
            "weights of the model, too; merge all of them: --to hf"
        )
    linked = {name: link for link in adapter.links for name in link.ours}
    links, layers = list[Link](), list[_Layer]()
    for name in adapted(weights):
        own = list(_layers(f"{name}.weight", weights[f"{name}.weight"].shape, linked.get(f"{name}.weight")))
        theirs = [f"{_PREFIX}{layer.name}.lora_{matrix}.weight" for layer in own for matrix in "AB"]
        to, back = partial(_to_peft, own), partial(_from_peft, own)
        links.append(Link(ours=(f"{name}.{A}", f"{name}.{B}"), theirs=tuple(theirs), to=to, back=back))
        layers += own
    if len({layer.transposed for layer in layers}) > 1:
        raise CheckpointError(
            "some of the adapted weights are transposed in transformers and others are not, which one folder of peft "
            "cannot say; merge the adapters: --to hf"
        )
    settings = {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "r": config.rank,
        "lora_alpha": config.alpha, "lora_dropout": config.dropout, "target_modules": [one.name for one in layers],
        "fan_in_fan_out": layers[0].transposed, "bias": "none", "modules_to_save": None, "inference_mode": True,
    }  # fmt: skip
    return Adapter(links=tuple(links), files={"adapter_config.json": json.dumps(settings, indent=2) + "\n"})


def _layers(weight: str, shape: torch.Size, link: Link | None) -> Iterator[_Layer]:
    if link is None:
        yield _Layer(weight.removesuffix(".weight"), None, transposed=False)
        return
    rows, columns = shape
    index = torch.arange(rows * columns).view(rows, columns)
    results = link.to([index]) if link.ours == (weight,) else []
    for name, result in zip(link.theirs, results, strict=True):
        for transposed in (False, True):
            matrix = result.t() if transposed else result
            taken = matrix[:, 0] // columns
            if matrix.shape[1] == columns and matrix.equal(taken[:, None] * columns + torch.arange(columns)):
                yield _Layer(name.removesuffix(".weight"), taken, transposed)
                break
        else:
            raise CheckpointError(
                f"{weight} is {name} in transformers, with its inputs in another order, which peft cannot express; "
                "merge the adapters: --to hf"
            )
    if not results:
        raise CheckpointError(
            f"{weight} is a part of {link.theirs[0]} in transformers, which peft cannot express; merge the adapters: "
            "--to hf"
        )


def _to_peft(layers: Sequence[_Layer], tensors: Sequence[Tensor]) -> list[Tensor]:
    a, b = tensors
    return [tensor for layer in layers for tensor in (a, b if layer.rows is None else b[layer.rows.to(b.device)])]


def _from_peft(layers: Sequence[_Layer], tensors: Sequence[Tensor]) -> list[Tensor]:
    if layers[0].rows is None:
        return list(tensors)
    rows = torch.cat([layer.rows for layer in layers if layer.rows is not None])
    b = torch.cat(list(tensors[1::2]))
    return [tensors[0], b[torch.argsort(rows).to(b.device)]]
