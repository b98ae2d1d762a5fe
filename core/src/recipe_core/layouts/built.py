"""Build a plugin's model, dataset and layout, and check them against their specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.specs import Dataset, Model, ModelFacts, Part
from recipe_core.hooks.target import as_plugin_error
from recipe_core.layouts.parallel import Batch, Loss, Parallel, Run, Samples
from recipe_core.layouts.patterns import matching

_FAILURES = (MemoryError, OSError, RuntimeError)
"""Errors that may come from the machine or from other ranks, not only from the plugin."""


def build_model(part: Part[Model], facts: ModelFacts | None = None) -> tuple[nn.Module, Loss]:
    """Build the module and its loss.

    Raises:
        PluginError: ``build`` raises or returns anything else, ``blocks`` matches no submodule, or ``facts`` contradict
            the module.
    """
    spec = part.spec
    code = f"model {spec.name!r}: {spec.build!r}"
    with as_plugin_error(code, *_FAILURES), _SkipMetaInit():
        answer = part.build(part.config)
    if not _is_module_and_loss(answer):
        raise PluginError(
            f"{code} returned {_type_name(answer)}; expected (module, loss): a torch.nn.Module and a function "
            "loss(output, batch)"
        )
    module, loss = answer
    _require_blocks(module, spec)
    if facts is not None:
        _require_facts(module, spec, facts)
    return module, loss


class _SkipMetaInit(TorchFunctionMode):
    """Skips the initialisation of tensors on the meta device.

    For some of them (nn.Embedding's) PyTorch imports its compiler, which takes most of a second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def build_samples(part: Part[Dataset], run: Run) -> Samples:
    """Build the samples of a dataset.

    Raises:
        PluginError: ``build`` raises, or returns an object without a method ``read``.
    """
    code = f"dataset {part.spec.name!r}: {part.spec.build!r}"
    with as_plugin_error(code, *_FAILURES):
        samples: Samples = part.build(part.config, run)
    if not callable(getattr(samples, "read", None)):
        raise PluginError(
            f"{code} returned {_type_name(samples)}; expected samples with a method read(split, start, count)"
        )
    return samples


def build_layout(build: Callable[..., Any], code: str, module: nn.Module, config: object, run: Run) -> Parallel:
    """Apply a layout's ``build`` to ``module``; errors call it ``code``.

    Raises:
        PluginError: it does not return a :class:`Parallel`.
    """
    model = build(module, config, run)
    if not isinstance(model, Parallel):
        raise PluginError(f"{code} returned {_type_name(model)}; expected a recipe_core.layouts.parallel.Parallel")
    return model


def _is_module_and_loss(answer: object) -> bool:
    return (
        isinstance(answer, (tuple, list))
        and len(answer) == 2
        and isinstance(answer[0], nn.Module)
        and callable(answer[1])
    )


def _type_name(answer: object) -> str:
    if isinstance(answer, (tuple, list)):
        return f"({', '.join(type(item).__name__ for item in answer)})"
    return type(answer).__name__


def _require_blocks(module: nn.Module, spec: Model) -> None:
    if spec.blocks and not matching(module, spec.blocks):
        lists = [f"{name}.*" for name, child in module.named_modules() if isinstance(child, nn.ModuleList)]
        raise PluginError(
            f"model {spec.name!r}: blocks={spec.blocks!r} matches none of its submodules"
            f"{did_you_mean(spec.blocks, lists)} (its lists of modules: {', '.join(lists) or 'none'}); fix the plugin"
        )


def _require_facts(module: nn.Module, spec: Model, facts: ModelFacts) -> None:
    # Estimates of memory are made of these counts; 0 means not known.
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
            "wrong; fix the plugin"
        )


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def checked_loss(loss: Loss, code: str) -> Loss:
    """Wrap ``loss`` of the plugin's ``code`` so that every call checks the values that it returns."""

    def checked(output: Any, batch: Batch) -> Mapping[str, Tensor]:
        values = loss(output, batch)
        if not isinstance(values, Mapping) or "loss" not in values:
            names = ", ".join(map(str, values)) if isinstance(values, Mapping) else ""
            got = f"a dict of {names or 'nothing'}" if isinstance(values, Mapping) else _type_name(values)
            raise PluginError(
                f"{code}: its loss returned {got}; expected a dict of scalar tensors, of which 'loss' is minimised"
            )
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.dim():
                shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else _type_name(value)
                raise PluginError(f"{code}: its loss returned {name!r} as {shape}; expected a scalar tensor")
        return values

    return checked
