"""Every hook is documented by a complete example: it runs as it stands, and contributes what the hook is for."""

from __future__ import annotations

import inspect
import sys
import textwrap
from types import ModuleType

import pytest

from recipe_core.hooks import hooks
from recipe_core.hooks.kinds import KINDS, Kind
from recipe_core.hooks.registry import load


def example(hook: str) -> str:
    """The code block of a hook's docstring."""
    text = inspect.getdoc(getattr(hooks, hook))
    assert text is not None
    _, block = text.split(".. code-block:: python\n")
    return textwrap.dedent(block)


def test_every_hook_is_asked() -> None:
    found = [name for name, value in vars(hooks).items() if hasattr(value, "recipe_spec")]
    assert sorted(found) == sorted(KINDS.values())


@pytest.mark.parametrize(("kind", "hook"), KINDS.items())
def test_the_example_in_a_hooks_docstring_is_a_plugin(kind: Kind, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ModuleType("example_plugin")
    monkeypatch.setitem(sys.modules, "example_plugin", plugin)  # dataclasses look their module up
    exec(compile(example(hook), f"{hook}.__doc__", "exec"), vars(plugin))

    registry = load([("example", lambda: plugin)])
    assert registry.broken == {}
    assert len(registry.names(kind)) == 1
    assert [other for other in KINDS if registry.names(other)] == [kind]
    real, shown = (
        inspect.signature(function, eval_str=True) for function in (getattr(hooks, hook), getattr(plugin, hook))
    )
    assert shown == real
