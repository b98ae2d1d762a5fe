"""A run that is killed and resumed has each step once."""

from pathlib import Path

from recipe_core import TrackedRun

from recipe_new_plugin.plugin import Table
from recipe_new_plugin.tracker import build


def test_steps_after_the_checkpoint_are_replaced(tmp_path: Path) -> None:
    for since, steps in ((0, (1, 2, 3)), (1, (2, 3))):
        run = TrackedRun(name="toy", folder=tmp_path, since=since, settings={}, warn=print)
        table = build(Table(), run)
        for step in steps:
            table.log(step, {"train/loss": 10.0 * since + step})
        table.close()
    lines = (tmp_path / "metrics.csv").read_text().split()
    assert lines == ["step,tag,value", "1,train/loss,1.0", "2,train/loss,12.0", "3,train/loss,13.0"]
