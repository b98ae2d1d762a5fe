"""The check of the language: each rule with a text that it reports, and one that it leaves alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from checks import language  # noqa: E402

GLOSSARY = (
    "| term | meaning | where |\n|---|---|---|\n| Engine (`x`), motor | Drives. | `recipe_core.engine.Engine` |\n"
)


def phrases(text: str, *, packaged: bool = False) -> list[tuple[int, str]]:
    return [(found.line, found.phrase) for found in language.check_source("a.py", text, packaged=packaged)]


def on_page(text: str) -> list[tuple[int, str]]:
    return [(found.line, found.phrase) for found in language.riddles("a.md", 1, language.prose(text))]


def clashes(*classes: tuple[str, str]) -> list[str]:
    known = [one for path, text in classes for one in language.public_classes(path, ast.parse(text))]
    return [f"{found.path} {found.instead.partition(':')[0]}" for found in language.check_classes(known, GLOSSARY)]


@pytest.mark.parametrize(
    "text",
    [
        "Whoever reads it.",
        "It waits for nobody.",
        "A rank is told when to stop.",
        "Told of the optimizer.",
        "A run of so many ranks.",
        "Every so-manieth batch.",
        "Training goes\non.",
        "The file lies beside it.",
        "It is let be.",
        "No model can be had.",
        "A loss in the place of another.",
        "Mend it.",
        "The way out.",
        "It left no word.",
    ],
)
def test_a_riddle_is_reported_in_every_kind_of_prose(text: str) -> None:
    assert len(on_page(text)) == 1
    assert len(phrases(f'"""Title.\n\n{text}"""')) == 1
    assert len(phrases("# " + text.replace("\n", "\n# "))) == 1
    assert len(phrases(f'X = 1\n"""A, {text}"""')) == 1


@pytest.mark.parametrize(
    "text",
    [
        "The user `nobody`, or nobody/model.",
        'It ends with "is gone, and left no word".',
        "Colours that are told apart.",
        "There are so many words that the output is large.",
        "The switch goes on the line.",
        "This recommends amendments.",
        "All the way outside.",
        "```bash\nmend it\n```",
        "[a page](how-to/mend-it.md)",
    ],
)
def test_code_quotations_and_plain_english_are_not(text: str) -> None:
    assert on_page(text) == []
    assert phrases('"""Title.\n\n{}\n"""'.format(text.replace('"', "'"))) == []


def test_a_phrase_is_found_on_its_line() -> None:
    assert phrases('\n\ndef f():\n    """Title.\n\n    It goes\n    on.\n    """\n') == [(6, "goes on")]
    assert phrases("x = 1  # it goes\ny = 2  # on there\n\n# it goes\n# on\n") == [(4, "goes on")]
    assert on_page("A\n\n```\nmend\n```\n\n`a\nb` nobody\n") == [(8, "nobody")]


def test_messages_of_packages_avoid_few_phrases() -> None:
    text = 'print("nobody knows; mend the plugin")'
    assert phrases(text) == []
    assert phrases(text, packaged=True) == [(1, "mend the")]


@pytest.mark.parametrize("word", ["So", "Told", "What", "Whether", "Whoever"])
def test_words_that_begin_no_docstring(word: str) -> None:
    assert (1, word) in phrases(f'"""{word} it does."""')
    assert phrases(f'"""Some{word.lower()} it does."""') == []


@pytest.mark.parametrize(
    ("function", "trivial"),
    [
        ("def _tokens(path: Path) -> Counts:\n    '''The counts of tokens in a path.'''", True),
        ("def f():\n    def read_file(name):\n        '''Read the named file.'''", True),
        ("class A:\n    def _file(self):\n        '''Return the file.'''", True),
        ("def _tokens(path):\n    '''The tokens of a path, sorted.'''", False),
        ("def _tokens(path):\n    '''The tokens.\n\n    Sorted.\n    '''", False),
        ("def _seconds(step):\n    '''Seconds of a step; 0: none.'''", False),
        ("def tokens(path):\n    '''The tokens of a path.'''", False),
        ("class A:\n    def __init__(self):\n        '''Return it.'''", False),
        ("def _tokens(path):\n    return path", False),
    ],
)
def test_a_docstring_that_repeats_the_signature_is_trivial(function: str, trivial: bool) -> None:
    assert bool(phrases(function)) == trivial


def test_no_two_classes_share_a_name() -> None:
    a, b = "core/src/recipe_core/a.py", "plugins/b/src/recipe_b/b.py"
    assert clashes((a, "class Grid: ..."), (b, "class Grid: ...")) == [
        f"{a} rename it, or recipe_b.b.Grid",
        f"{b} rename it, or recipe_core.a.Grid",
    ]
    assert clashes((a, "class _Grid: ..."), (b, "class _Grid: ...")) == []
    assert clashes((a, "def f():\n    class Grid: ..."), (b, "class Grid: ...")) == []


def test_a_class_with_the_name_of_a_term_is_the_one_of_the_glossary() -> None:
    home, other = "core/src/recipe_core/engine/__init__.py", "plugins/b/src/recipe_b/b.py"
    assert clashes((home, "class Engine: ..."), (other, "class Car: ...")) == []
    assert clashes((other, "class Engine: ...")) == clashes((other, "class Motor: ...")) == [f"{other} rename it"]
