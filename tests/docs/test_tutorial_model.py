"""The tutorial on a model of your own: its code is that of the example, and its commands work with it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from page_commands import commands, type_command

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "tutorials" / "model.md"
EXAMPLE = DOCS / "examples" / "decoder"


def files() -> dict[str, str]:
    """Return the files that the page shows, by their path in the package."""
    blocks = re.findall(r"^```\w+ examples/decoder/(\S+)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names = [name for name, _ in blocks]
    assert len(names) == len(set(names))
    return dict(blocks)


def test_the_page_shows_the_whole_package() -> None:
    source = {path.relative_to(EXAMPLE).as_posix(): path for path in EXAMPLE.glob("src/*/*.py")}
    shown = files()
    assert shown.keys() >= source.keys() - {"src/recipe_decoder/__init__.py"}
    assert {name: (EXAMPLE / name).read_text("utf-8") for name in shown} == shown


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_its_commands_work_with_what_was_copied_from_the_page(tmp_path: Path) -> None:
    for name, text in files().items():
        (tmp_path / "decoder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "decoder" / name).write_text(text, encoding="utf-8")
    package = tmp_path / "decoder" / "src" / "recipe_decoder"
    (package / "__init__.py").touch()
    # Instead of pip: an installed package is files on the path, and a table of its entry points.
    if "decoder" not in importlib.metadata.entry_points(group="recipe.plugins").names:
        table = re.search(
            r'^\[project.entry-points."(.+)"\]\n(.+?)\n\n', files()["pyproject.toml"], re.MULTILINE | re.DOTALL
        )
        assert table is not None
        info = package.parent / "recipe_decoder-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: recipe-decoder\nVersion: 0.1.0\n", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(f"[{table[1]}]\n{table[2].replace(chr(34), '')}\n", encoding="utf-8")
    lines = [line for line in commands(PAGE.read_text("utf-8")) if line.startswith("recipe ")]
    assert len(lines) > 10
    for line in lines:
        type_command(line, tmp_path, PYTHONPATH=str(package.parent))
    assert (tmp_path / "decoder-hf" / "model.safetensors").is_file()
