"""The page of classes: what it lists, and that a public class needs a meaning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import api  # type: ignore[import-not-found]

SOURCE = '''
class Wheel:
    """A ``wheel`` | tyre, see :class:`~recipe_core.Car`. It turns."""

    class Spoke:
        """A part."""

class _Hub: ...

def f():
    class Local: ...
'''


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of a copy of the workspace that holds nothing else."""
    monkeypatch.setattr(api, "ROOT", tmp_path)
    path = tmp_path / "core" / "src" / "recipe_core" / "train" / "car.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    return path


def test_classes_are_listed_by_room(source: Path) -> None:
    assert api.classes_page().splitlines()[-7:] == [
        "## `recipe_core.train`",
        "",
        "| class | meaning | module |",
        "|---|---|---|",
        "| `Wheel` | A `wheel` \\| tyre, see `recipe_core.Car`. | `recipe_core.train.car` |",
        "| `Spoke` | A part. | `recipe_core.train.car` |",
        "| `_Hub` |  | `recipe_core.train.car` |",
    ]


def test_a_public_class_needs_a_docstring(source: Path) -> None:
    source.write_text("class Wheel: ...")
    with pytest.raises(SystemExit, match=r"recipe_core\.train\.car\.Wheel has no docstring"):
        api.classes_page()
