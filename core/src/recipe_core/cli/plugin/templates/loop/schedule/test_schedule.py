"""The rate rises to its peak, and falls as the settings say."""

import pytest
from recipe_core import Train

from recipe_new_plugin.plugin import InverseRoot
from recipe_new_plugin.schedule import build


@pytest.mark.parametrize("warmup", [{"warmup_steps": 10}, {"warmup_ratio": 0.1}])
def test_rates(warmup: dict[str, float]) -> None:
    rate = build(InverseRoot(scale=20), Train(steps=100, lr=0.5, **warmup))  # type: ignore[arg-type]
    assert [rate(step) for step in (0, 5, 10)] == [0.0, 0.25, 0.5]
    assert rate(10 + 20) == pytest.approx(0.5 / 2**0.5)
    assert rate(10 + 60) == pytest.approx(0.25)


def test_without_warmup() -> None:
    assert build(InverseRoot(), Train(steps=100, lr=0.5))(0) == 0.5
