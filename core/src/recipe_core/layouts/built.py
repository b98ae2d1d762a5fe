"""Build a plugin's parts, check them against their specs, and name the plugin in the errors of their code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import COLUMNS, EngineSpec, Layout, Model, ModelFacts, Part, Spec
from recipe_core.hooks.specs.loop import OWN_LOSS, LossSpec
from recipe_core.hooks.target import as_plugin_error, call
from recipe_core.launch.failures import is_of_machine
from recipe_core.layouts.outputs import with_output_names
from recipe_core.layouts.parallel import Batch, Loss, Parallel, Run
from recipe_core.layouts.patterns import matching


def as_part_error(spec: Spec, did: str = "", only: type[BaseException] = BaseException) -> as_plugin_error:
    """Raise errors (of the class ``only``) of a contribution's code as PluginError; ``did`` names its method.

    Errors of the machine and of other ranks pass, and all errors of the core's own contributions: they are bugs. See
    :class:`as_plugin_error`.
    """
    own = spec.build.startswith("recipe_core.")
    return as_plugin_error(
        f"{code_of(spec)}{did}", passes=lambda error: own or not isinstance(error, only) or is_of_machine(error)
    )


def build_model(part: Part[Model], facts: ModelFacts | None = None) -> tuple[nn.Module, Loss]:
    """Build the module and its loss.

    Raises:
        PluginError: ``build`` raises or returns anything else, ``blocks`` matches no submodule, or ``facts`` contradict
            the module.
    """
    spec = part.spec
    with as_part_error(spec), _WithoutCompiler():
        answer = part.build(part.config)
    if not _is_module_and_loss(answer):
        raise PluginError(
            f"{code_of(spec)} returned {type_name(answer)}; expected (module, loss): a torch.nn.Module and a function "
            "loss(output, batch)"
        )
    module, loss = answer
    _require_blocks(module, spec)
    if facts is not None:
        _require_facts(module, spec, facts)
    return module, loss


def build_blank(part: Part[Model]) -> nn.Module:
    """Build the module on the meta device, without values.

    Raises:
        PluginError: see :func:`build_model`.
        ConfigError: it is not known before the run.
    """
    with torch.device("meta"):
        if not part.spec.blank:
            return build_model(part)[0]
        with _WithoutCompiler():
            module = call(part.spec.blank, f"model {part.spec.name!r}", part.config)
    if not isinstance(module, nn.Module):
        raise PluginError(
            f"model {part.spec.name!r}: {part.spec.blank!r} returned {type_name(module)}; expected a torch.nn.Module"
        )
    return module


class _WithoutCompiler(TorchFunctionMode):
    """Does without functions for which PyTorch imports its compiler and sympy, which takes seconds on a slow machine.

    These are the initialisation of some tensors on the meta device (nn.Embedding's), which is skipped, and
    ``empty_like`` of them, with which ``to_empty`` gives a module memory.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        if func is torch.empty_like and args and args[0].is_meta and kwargs.keys() <= {"device"}:
            tensor, device = args[0], kwargs.get("device") or args[0].device
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return func(*args, **kwargs)


def build_layout(part: Part[Layout], module: nn.Module, run: Run, engine: EngineSpec | None = None) -> Parallel:
    """Apply a layout to ``module``, by the build of its own that ``engine`` has for it, if any.

    Raises:
        PluginError: it raises, or does not return a :class:`Parallel`.
    """
    spec: Spec = part.spec
    if engine is not None and part.spec.name in engine.layouts:
        spec = replace(engine, build=engine.layouts[part.spec.name])
    with as_part_error(spec):
        model = spec.load()(module, part.config, run)
    if not isinstance(model, Parallel):
        raise PluginError(
            f"{code_of(spec)} returned {type_name(model)}; expected a recipe_core.layouts.parallel.Parallel"
        )
    return model


def build_loss(part: Part[LossSpec], model: Model, own: Loss) -> Loss:
    """Build the loss around the model's ``own``, see :func:`checked_loss`.

    Raises:
        PluginError: ``build`` raises, or returns nothing that can be called.
    """
    spec: Spec = model if part.spec.name == OWN_LOSS else part.spec
    with as_part_error(part.spec):
        loss = part.build(part.config, own)
    if not callable(loss):
        raise PluginError(f"{code_of(spec)} returned {type_name(loss)}; expected a function loss(output, batch)")
    return checked_loss(loss if spec is model else with_output_names(loss, part.spec, model), spec)


def _is_module_and_loss(answer: object) -> bool:
    return (
        isinstance(answer, (tuple, list))
        and len(answer) == 2
        and isinstance(answer[0], nn.Module)
        and callable(answer[1])
    )


def type_name(answer: object) -> str:
    """Return the type of what a plugin returned, for messages."""
    if answer is None or (isinstance(answer, dict) and not answer):
        return repr(answer)
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


def checked_loss(loss: Loss, spec: Spec) -> Loss:
    """Wrap the ``loss`` of ``spec`` so that every call checks the values that it returns."""
    code, guard = code_of(spec), as_part_error(spec, ": its loss")

    def checked(output: Any, batch: Batch) -> Mapping[str, Tensor]:
        with guard:
            values = loss(output, batch)
        if not isinstance(values, Mapping) or "loss" not in values:
            names = ", ".join(map(str, values)) if isinstance(values, Mapping) else ""
            got = f"a dict of {names or 'nothing'}" if isinstance(values, Mapping) else type_name(values)
            raise PluginError(
                f"{code}: its loss returned {got}; expected a dict of scalar tensors, of which 'loss' is minimised"
            )
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.dim():
                shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type_name(value)
                raise PluginError(f"{code}: its loss returned {name!r} as {shape}; expected a scalar tensor")
            if name in COLUMNS:
                raise PluginError(
                    f"{code}: its loss returned {name!r}, a column of the core's own; choose another name"
                )
        if not values["loss"].is_floating_point():
            raise PluginError(
                f"{code}: its loss returned 'loss' as {values['loss'].dtype}; expected a floating-point tensor"
            )
        if torch.is_grad_enabled() and not values["loss"].requires_grad:
            raise PluginError(
                f"{code}: its loss returned a 'loss' without a gradient (is it detached?); expected "
                "one that is computed from the output of the model"
            )
        return values

    return checked
