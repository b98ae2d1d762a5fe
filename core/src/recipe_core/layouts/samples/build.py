"""Build the samples of a dataset with its wrappers, and check what each of them returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from torch import Tensor

from recipe_core.errors import PluginError
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import Dataset, Part, Spec
from recipe_core.hooks.specs.wrapper import outermost
from recipe_core.layouts.built import as_part_error, type_name
from recipe_core.layouts.parallel import Batch, Run, Samples
from recipe_core.layouts.samples.wrapping import WrapperRun

Read = Callable[[str, int, int], Batch]
"""See :meth:`recipe_core.layouts.parallel.Samples.read`."""


def build_samples(part: Part[Dataset], run: Run) -> Samples:
    """Build the samples of a dataset, and its wrappers around them.

    Raises:
        PluginError: ``build`` raises, or returns an object without a method ``read``.
    """
    with as_part_error(part.spec):
        samples: Samples = part.build(part.config, run)
    _require_read(samples, part.spec)
    for number, wrapper in enumerate(part.wrappers):
        below = replace(part, wrappers=part.wrappers[:number])
        around = WrapperRun(run=run, part=wrapper, below=below)
        with as_part_error(wrapper.spec):
            samples = wrapper.build(
                wrapper.config, CheckedSamples(samples, outermost(below), wrapper.spec.takes), around
            )
        _require_read(samples, wrapper.spec)
    return samples


class CheckedSamples:
    """Samples whose every read is checked, so that an error is blamed on the code that made it."""

    def __init__(self, samples: Samples, spec: Spec, takes: Collection[str] = (), by: str = "the data wrapper") -> None:
        self._read = checked_read(samples, spec, takes, by)

    def read(self, split: str, start: int, count: int) -> Batch:
        """See :meth:`recipe_core.layouts.parallel.Samples.read`."""
        return self._read(split, start, count)


def checked_read(samples: Samples, spec: Spec, takes: Collection[str] = (), by: str = "the model or the loss") -> Read:
    """Return ``samples.read``, checked at each call against its contract; it must give the tensors ``takes``.

    ``spec`` is the dataset or wrapper that returned the samples; ``by`` names what takes the tensors.
    """
    code, guard = f"{code_of(spec)}: read", as_part_error(spec, ": read")

    def read(split: str, start: int, count: int) -> Batch:
        with guard:
            batch = samples.read(split, start, count)
        if not isinstance(batch, Mapping) or not batch:
            raise PluginError(f"{code} returned {type_name(batch)}; expected a dict of tensors by name")
        for name, tensor in batch.items():
            if not isinstance(tensor, Tensor):
                raise PluginError(f"{code} returned {name!r} as {type_name(tensor)}; expected a tensor")
            if tensor.dim() == 0 or tensor.shape[0] != count:
                raise PluginError(
                    f"{code}({split!r}, {start}, {count}) returned {name!r} of shape {list(tensor.shape)}; expected "
                    f"[{count}, ...]"
                )
        if lacking := [name for name in takes if name not in batch]:
            raise PluginError(
                f"{code} returned no {', '.join(lacking)}, which {by} takes; it returned {', '.join(map(str, batch))}"
            )
        return batch

    return read


def _require_read(samples: object, spec: Spec) -> None:
    if not callable(getattr(samples, "read", None)):
        raise PluginError(
            f"{code_of(spec)} returned {type_name(samples)}; expected samples with a method read(split, start, count)"
        )
