"""The answer of a run to the first signal."""

from __future__ import annotations

import pytest

from recipe_core.train.stopping import announcement


@pytest.mark.parametrize(
    ("name", "step", "may_discard", "answer"),
    [
        ("SIGTERM", 3, False, "SIGTERM: saving after step 3"),
        ("SIGINT", 1354, False, "SIGINT: saving after step 1,354; Ctrl-C again stops at once, without saving"),
        ("SIGTERM", 3, True, "SIGTERM: saving step 2 in about 1 s, or step 3 if that ends before"),
        ("SIGTERM", None, False, "SIGTERM: saving after this step"),
    ],
)
def test_the_answer_names_the_step_that_is_saved(name: str, step: int | None, may_discard: bool, answer: str) -> None:
    assert announcement(name, step, may_discard=may_discard) == answer
