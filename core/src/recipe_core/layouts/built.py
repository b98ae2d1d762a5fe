"""A model as its plugin builds it, held against what its spec promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.specs import Dataset, Model, ModelFacts, Part
from recipe_core.hooks.target import blamed
from recipe_core.layouts.parallel import Batch, Loss, Parallel, Run, Samples
from recipe_core.layouts.patterns import matching

_FAILURES = (MemoryError, OSError, RuntimeError)
"""Errors that say something of the machine or the other ranks, and not of the plugin alone."""


def build_model(part: Part[Model], facts: ModelFacts | None = None) -> tuple[nn.Module, Loss]:
    """Build the module and its loss.

    Raises:
        PluginError: ``build`` raises or returns anything else, ``blocks`` matches nothing, or ``facts`` are not those
            of the module.
    """
    spec = part.spec
    code = f"model {spec.name!r}: {spec.build!r}"
    with blamed(code, *_FAILURES), _Undrawn():
        answer = part.build(part.config)
    if not _is_module_and_loss(answer):
        raise PluginError(
            f"{code} returned {_described(answer)}; expected (module, loss): a torch.nn.Module and a function "
            "loss(output, batch)"
        )
    module, loss = answer
    _require_blocks(module, spec)
    if facts is not None:
        _require_facts(module, spec, facts)
    return module, loss


class _Undrawn(TorchFunctionMode):
    """Leaves out initial values of tensors on the meta device, which have none.

    PyTorch imports its compiler for some of them (nn.Embedding's), which takes most of a second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def build_samples(part: Part[Dataset], run: Run) -> Samples:
    """Build the source of batches.

    Raises:
        PluginError: ``build`` raises, or returns nothing that batches can be read from.
    """
    code = f"dataset {part.spec.name!r}: {part.spec.build!r}"
    with blamed(code, *_FAILURES):
        samples: Samples = part.build(part.config, run)
    if not callable(getattr(samples, "read", None)):
        raise PluginError(
            f"{code} returned {_described(samples)}; expected samples with a method read(split, start, count)"
        )
    return samples


def build_layout(build: Callable[..., Any], code: str, module: nn.Module, config: object, run: Run) -> Parallel:
    """Divide ``module`` or copy it by a layout's ``build``, which is known as ``code``.

    Raises:
        PluginError: it returns anything else than a :class:`Parallel`.
    """
    model = build(module, config, run)
    if not isinstance(model, Parallel):
        raise PluginError(f"{code} returned {_described(model)}; expected a recipe_core.layouts.parallel.Parallel")
    return model


def _is_module_and_loss(answer: object) -> bool:
    return (
        isinstance(answer, (tuple, list))
        and len(answer) == 2
        and isinstance(answer[0], nn.Module)
        and callable(answer[1])
    )


def _described(answer: object) -> str:
    if isinstance(answer, (tuple, list)):
        return f"({', '.join(type(item).__name__ for item in answer)})"
    return type(answer).__name__


def _require_blocks(module: nn.Module, spec: Model) -> None:
    if spec.blocks and not matching(module, spec.blocks):
        lists = [f"{name}.*" for name, child in module.named_modules() if isinstance(child, nn.ModuleList)]
        raise PluginError(
            f"model {spec.name!r}: blocks={spec.blocks!r} matches none of its submodules"
            f"{did_you_mean(spec.blocks, lists)} (its lists of modules: {', '.join(lists) or 'none'}); mend the plugin"
        )


def _require_facts(module: nn.Module, spec: Model, facts: ModelFacts) -> None:
    """Hold the counts that estimates of memory are made of against the module; those that are 0 are not known."""
    blocks = list(matching(module, spec.blocks).values())
    sizes = sorted({_size(block) for block in blocks})
    wrong = []
    if facts.parameters != _size(module):
        wrong.append(f"parameters={facts.parameters:,}, and the module has {_size(module):,}")
    if facts.blocks not in (0, len(blocks)):
        wrong.append(f"blocks={facts.blocks:,}, and blocks={spec.blocks!r} matches {len(blocks):,}")
    if blocks and facts.block_parameters and facts.block_parameters not in sizes:
        there = " or ".join(f"{size:,}" for size in sizes)
        wrong.append(f"block_parameters={facts.block_parameters:,}, and a block has {there}")
    if wrong:
        raise PluginError(
            f"model {spec.name!r}: its facts ({spec.facts}) say {'; '.join(wrong)}. Estimates would be "
            "wrong; mend the plugin"
        )


def _size(module: nn.Module) -> int:
    """Trainable parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def checked_loss(loss: Loss, code: str) -> Loss:
    """``loss`` of the plugin's ``code``, held at every call against what a loop may do with its values."""

    def checked(output: Any, batch: Batch) -> Mapping[str, Tensor]:
        values = loss(output, batch)
        if not isinstance(values, Mapping) or "loss" not in values:
            names = ", ".join(map(str, values)) if isinstance(values, Mapping) else ""
            got = f"a dict of {names or 'nothing'}" if isinstance(values, Mapping) else _described(values)
            raise PluginError(
                f"{code}: its loss returned {got}; expected a dict of scalar tensors, of which 'loss' is minimised"
            )
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.dim():
                shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else _described(value)
                raise PluginError(f"{code}: its loss returned {name!r} as {shape}; expected a scalar tensor")
        return values

    return checked
