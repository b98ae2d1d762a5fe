"""When a loss counts as risen, and which checkpoint is then the last good one."""

from __future__ import annotations

import math

from recipe_core.checkpoint.saving.retention import Trend


def after(*losses: float | None) -> Trend:
    found = Trend()
    for step, loss in enumerate(losses, 1):
        found.add(step, loss)
    return found


def test_a_falling_and_a_noisy_loss_have_not_risen() -> None:
    losses = [10 * math.exp(-step / 30) + 1 + 0.1 * (-1) ** step for step in range(200)]
    assert after(*losses).newest_good(range(1, 201)) == 200


def test_an_explosion_never_becomes_normal() -> None:
    falling = [5 - step / 20 + 0.1 * (-1) ** step for step in range(60)]
    assert after(*falling, *[4.9] * 500).newest_good([40, 50, 60, 300, 560]) == 50


def test_what_is_not_finite_has_risen_and_a_recovery_is_sound() -> None:
    falling = [5 - step / 20 for step in range(60)]
    assert after(*falling, None).newest_good([60, 61]) == 60
    assert after(*falling, math.nan, math.inf, 2.0).newest_good([60, 61, 62, 63]) == 63
    assert after(None).newest_good([1]) is None


def test_the_step_before_a_rise_is_doubtful() -> None:
    """Its update may have made it; where nothing else is left, it is the last good one."""
    found = after(*[5 - step / 20 for step in range(60)], 9.0, 9.0)
    assert [found.newest_good(steps) for steps in ([58, 60, 62], [60, 62], [62])] == [58, 60, None]


def test_a_tenfold_loss_has_risen_before_there_is_a_level() -> None:
    assert after(6.2, 6.3, 3e12).newest_good([1, 2, 3]) == 1
    assert after(6.2, 6.3, 50.0).newest_good([1, 2, 3]) == 3
    assert after(0.0, 1.0).newest_good([1, 2]) == 2
    assert after(-2.0, 7.0).newest_good([1, 2]) == 2
    assert after(-2.0, 70.0).newest_certain([1, 2]) is None


def test_a_short_recovery_is_not_certain() -> None:
    losses = [*[5 - step / 20 for step in range(60)], math.nan, 0.0, 0.0, math.nan]
    assert after(*losses).newest_certain([58, 60, 62, 63]) == 58
    assert after(*losses, *[1.0] * 4).newest_certain([58, 65, 68]) == 58
    assert after(*losses, *[1.0] * 5).newest_certain([58, 62, 65, 69]) == 69
    assert after(*losses, *[1.0] * 5).newest_certain([58, 62, 65]) == 65
    assert after(*losses, *[1.0] * 5).newest_certain([58, 62]) == 58


def test_nothing_is_known_yet() -> None:
    assert after().newest_good([1, 2]) == 2
    assert after().newest_good([]) is None
