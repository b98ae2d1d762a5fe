"""The text that CPython carries."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from recipe_core.data.text import library
from recipe_core.errors import DataError


def test_a_python_without_sources_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "nul.py").write_bytes(b"x = '\0'")
    (tmp_path / "small.py").write_text('"""One docstring is not enough text to learn English from."""')
    with pytest.raises(DataError, match=r"hold 55 characters of English text, .*data\.files"):
        library.documents(tmp_path)


def test_documents_are_cleaned_and_repetitions_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_LEAST_CHARACTERS", 1)
    (tmp_path / "a.py").write_text(
        '"""Heading\n=======\n\nA module that says what it is for, in eight words.\n\n>>> 1 + 1\n2\n"""\n'
        "class A:\n"
        '    """The class has eight words or more, and one method."""\n'
        "    def f(self):\n"
        '        """The method    \n        speaks   too."""\n'
        "def short():\n"
        '    """Too short."""\n'
    )
    (tmp_path / "b.py").write_text(
        'def copy():\n    """THE class has eight words or more, and one method.\n\n    The method speaks, too!"""\n'
    )
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text(
        "topics = {'x': 'The topic of x\\n**************\\n\\nIt is explained here in some more words.\\n'}\n"
    )
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "c.py").write_text('"""Tests are left out, however many words of English they hold."""')
    assert sorted(library.documents(tmp_path)) == [
        "Heading\n\nA module that says what it is for, in eight words.",
        "The class has eight words or more, and one method.\n\nThe method\nspeaks   too.",
        "The topic of x\n\nIt is explained here in some more words.",
    ]


def test_docstrings_come_in_the_order_of_a_walk_through_the_whole_tree() -> None:
    for name in ("ast", "argparse", "asyncio.base_events", "dataclasses", "typing", "zipfile"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        tree = ast.parse(Path(str(spec.origin)).read_bytes())
        for node in tree.body:
            kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            walked = [ast.get_docstring(inner) or "" for inner in ast.walk(node) if isinstance(inner, kinds)]
            assert list(library._docstrings(node)) == walked
