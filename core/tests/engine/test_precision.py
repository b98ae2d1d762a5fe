"""Precision of a run's products."""

from __future__ import annotations

import pytest
import torch

from recipe_core.engine import precision


@pytest.mark.parametrize("native", [True, False])
def test_mixed_precision_is_fp32_where_the_processor_cannot_multiply_bf16(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "multiplies_bf16", lambda device: native)
    layer, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    with precision.autocast("cpu", "bf16_mixed"):
        assert layer(x).dtype == (torch.bfloat16 if native else torch.float32)
    assert ("in fp32" in precision.described("cpu", "bf16_mixed")) != native
    assert ("fp32 is many times faster" in precision.described("cpu", "bf16")) != native
    assert precision.described("cpu", "fp32") == "fp32"


def test_other_devices_are_taken_at_their_word() -> None:
    assert precision.multiplies_bf16("cuda")
