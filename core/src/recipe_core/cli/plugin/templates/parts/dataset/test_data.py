"""Samples are windows of the prepared text."""

from pathlib import Path

from recipe_new_plugin.data import Windows
from recipe_new_plugin.files import prepare
from recipe_new_plugin.settings import Prepare, Texts


def test_samples_are_windows_of_the_text(tmp_path: Path) -> None:
    text = "".join(chr(97 + number % 26) for number in range(500))
    (tmp_path / "text.txt").write_text(text)
    prepare(Prepare(inputs=(str(tmp_path / "text.txt"),), output=str(tmp_path / "out")))
    batch = Windows(Texts(folder=str(tmp_path / "out"), sequence=10), seed=3).read("train", 5, 4)
    for tokens, labels in zip(batch["tokens"], batch["labels"], strict=True):
        assert bytes(tokens.tolist()).decode() in text
        assert labels[:-1].equal(tokens[1:])
