"""Adapters under the names of Hugging Face's peft, as ``PeftModel.from_pretrained`` reads them.

peft adapts the layers of the model in transformers. There, a weight may be transposed (GPT-2's ``Conv1D``), have its
rows in another order (queries, keys and values), or be several weights. The rows of ``B`` follow those of the weight,
and ``A`` stays as it is; a weight that is several there gives each of them the same ``A``.

Submodules that were trained in full beside the adapters are peft's ``modules_to_save``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor

from recipe_core.checkpoint.adapter import Adapter, Link
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.errors import CheckpointError
from recipe_core.train.building.transforms.lora import A, B, adapted
from recipe_core.train.building.transforms.names import prefixes
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
        CheckpointError: peft cannot express them, or what was trained beside them.
    """
    linked = {name: link for link in adapter.links for name in link.ours}
    links, layers = list[Link](), list[_Layer]()
    for name in adapted(weights):
        own = list(_layers(f"{name}.weight", weights[f"{name}.weight"].shape, linked.get(f"{name}.weight")))
        theirs = [f"{_PREFIX}{layer.name}.lora_{matrix}.weight" for layer in own for matrix in "AB"]
        to, back = partial(_to_peft, own), partial(_from_peft, own)
        links.append(Link(ours=(f"{name}.{A}", f"{name}.{B}"), theirs=tuple(theirs), to=to, back=back))
        layers += own
    whole = _whole_links(config, weights, adapter, linked)
    owners = {_owner(name).removeprefix(_PREFIX) for link in whole for name in link.theirs}
    if len({layer.transposed for layer in layers}) > 1:
        raise CheckpointError(
            "some of the adapted weights are transposed in transformers and others are not, which one folder of peft "
            "cannot say; merge the adapters: --to hf"
        )
    settings = {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "r": config.rank,
        "lora_alpha": config.alpha, "lora_dropout": config.dropout, "target_modules": [one.name for one in layers],
        "fan_in_fan_out": layers[0].transposed, "bias": "none", "inference_mode": True,
        "modules_to_save": sorted(owners) or None,
    }  # fmt: skip
    return Adapter(links=(*links, *whole), files={"adapter_config.json": json.dumps(settings, indent=2) + "\n"})


def _whole_links(config: Lora, weights: Mapping[str, Lazy], adapter: Adapter, linked: Mapping[str, Link]) -> list[Link]:
    """Links of the tensors of submodules that were trained in full.

    Raises:
        CheckpointError: peft cannot express them.
    """
    own = {name: linked.get(name) or Link(ours=(name,), theirs=(name,)) for name in weights if not _adds(name)}
    chosen = {name: link for name, link in own.items() if _named(name, config.trained)}
    names = {name for link in chosen.values() for name in link.theirs}
    rest = {name for link in own.values() for name in link.theirs} - names
    modules = tuple(map(_owner, names))
    # peft takes a submodule with all that it holds, and every other one whose name ends so.
    wrong = {name for name in rest if modules and _owner(name).endswith(modules)}
    wrong |= (
        names & {*adapter.ties, *adapter.ties.values()}
        | {f"{name}.weight" for name in adapted(weights)} & chosen.keys()
    )
    if wrong:
        raise CheckpointError(
            f"transform.lora.trained={','.join(config.trained)}: a folder of peft holds whole submodules alone beside "
            f"the adapters, without ties and without adapters of their own, which does not fit {min(wrong)}; merge all "
            "of them: --to hf"
        )
    links = dict.fromkeys(chosen.values())
    return [replace(link, theirs=tuple(f"{_PREFIX}{name}" for name in link.theirs)) for link in links]


def _named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(prefix, pattern) for prefix in prefixes(name) for pattern in patterns)


def _adds(name: str) -> bool:
    return name.rpartition(".")[2] in (A, B)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


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
