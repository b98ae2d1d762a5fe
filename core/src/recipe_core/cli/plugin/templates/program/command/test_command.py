"""The command, as a user types it."""

import pytest
from click.testing import CliRunner

from recipe_new_plugin.command import differences


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["new_plugin", "new_plugin"], 0, ""),
        (["new_plugin", "new_plugin:tiny", "--section", "model"], 0, ""),
        (
            ["new_plugin", "new_plugin:tiny"],
            1,
            "train.global_batch: 32 | 8\n"
            "train.log_every: 10 | 1\n"
            "train.micro_batch: 16 | 2\n"
            "train.steps: 300 | 8\n",
        ),
    ],
)
def test_differences(words: list[str], code: int, printed: str) -> None:
    result = CliRunner().invoke(differences, words, standalone_mode=False)
    assert (result.return_value, result.output) == (code, printed)
