"""Data and tokenizer of a run under the paths of others: what continues, what is refused, and whose words are used."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core import DataError
from recipe_core.cli.main import main
from recipe_core.data.identity import TOKENIZER, tokenizer_digest
from recipe_core.testing import run_tiny, runs
from recipe_megatron_gpt.data.identity import identity
from recipe_megatron_gpt.settings import GptIndexed

Typed = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets of one size and other words, A and B, and a run on D, a copy of A, stopped half way."""
    folder = tmp_path_factory.mktemp("identity")
    for name, letters in (("A", "abcdefghij"), ("B", "klmnopqrst")):
        chance = random.Random(name)
        words = ["".join(chance.choices(letters, k=chance.randint(2, 7))) for _ in range(300)]
        text = folder / f"{name}.txt"
        text.write_text("\n\n".join(" ".join(chance.choices(words, k=60)) for _ in range(100)))
        line = ["prepare", "gpt_indexed", f"inputs={text}", f"output={folder / name}", "documents=blank_line"]
        assert main([*line, "vocab_size=400"]) == 0
    shutil.copytree(folder / "A", folder / "D")
    run_tiny("megatron_gpt", folder / "run", f"data.files={folder / 'D'}", "train.stop_after=2")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to change; D is where the run's settings say."""
    shutil.rmtree(made / "D", ignore_errors=True)
    shutil.copytree(made / "A", made / "D")
    for name in ("A", "B", "D", "run"):
        shutil.copytree(made / name, tmp_path / name)
    monkeypatch.chdir(made)
    return tmp_path


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Typed:
    return runs.typed(capfd)


def swap(made: Path) -> None:
    """Replace the data of the run by B."""
    shutil.rmtree(made / "D")
    shutil.copytree(made / "B", made / "D")


def word(text: str) -> str:
    """The last word of a message, which accepts the difference."""
    return text.split()[-1].removeprefix("train.accept=")


def test_a_run_does_not_go_on_with_other_data(made: Path, place: Path, typed: Typed) -> None:
    swap(made)
    line = ("run", "megatron_gpt:tiny", f"data.files={made / 'D'}", "--out", place / "run")
    code, said = typed(*line)
    assert code == 2
    assert f"{place / 'run'} was trained on other data:\n  - the data: digest " in said
    assert "  - the tokenizer: digest " in said
    assert typed("check", *line[1:])[0] == 2
    code, said = typed("eval", place / "run")
    assert "the data of its run is not what it was trained on" in said
    assert typed("eval", place / "run", "--accept", word(said))[0] == 0


def test_its_own_tokenizer_is_used_wherever_the_data_went(made: Path, place: Path, typed: Typed) -> None:
    prompt = ("--prompt", "abc", "--tokens", "5", "--temperature", "0")
    before = typed("generate", place / "run", *prompt)
    assert before[0] == 0
    swap(made)
    assert typed("generate", place / "run", *prompt) == before
    shutil.rmtree(made / "D")
    assert typed("generate", place / "run", *prompt) == before
    code, said = typed("convert", place / "run", place / "hf", "--to", "hf", "--drop", "optimizer")
    assert code == 0, said
    assert (place / "hf" / "tokenizer.json").read_bytes() == (place / "A" / "tokenizer.json").read_bytes()


def test_without_its_own_no_other_tokenizer_is_taken(made: Path, place: Path, typed: Typed) -> None:
    shutil.rmtree(place / "run" / TOKENIZER)
    assert typed("generate", place / "run", "--prompt", "abc", "--tokens", "5")[0] == 0  # the data's is the same
    swap(made)
    code, said = typed("generate", place / "run", "--prompt", "abc")
    assert (code, "holds no copy of it, and the data has another one now; give it: --tokenizer PATH" in said) == (
        2,
        True,
    )
    code, said = typed("convert", place / "run", place / "hf", "--to", "hf", "--drop", "optimizer")
    assert (code, "no tokenizer" in said) == (0, True)
    assert not (place / "hf" / "tokenizer.json").exists()


@pytest.mark.parametrize(("name", "code"), [("A", 0), ("A/tokenizer.json", 0), ("B", 2), ("B/tokenizer.json", 2)])
def test_a_tokenizer_that_is_named(place: Path, typed: Typed, name: str, code: int) -> None:
    line = ("generate", place / "run", "--prompt", "abc", "--tokens", "5", "--tokenizer", place / name)
    found, said = typed(*line)
    assert found == code
    if code:
        assert "its tokenizer is not the one that " in said
        assert typed(*line, "--accept", word(said))[0] == 0


def test_data_of_another_tokenizer_is_not_evaluated(place: Path, typed: Typed) -> None:
    assert typed("eval", place / "run", "--data", place / "A")[0] == 0
    code, said = typed("eval", place / "run", "--data", place / "B")
    assert (code, f"--data {place / 'B'}: its tokenizer is not the one that " in said) == (2, True)
    assert typed("eval", place / "run", "--data", place / "B", "--accept", word(said))[0] == 0


@pytest.mark.parametrize("command", ["check", "run"])
def test_files_of_two_tokenizers_are_not_blended(place: Path, typed: Typed, command: str) -> None:
    line = (command, "megatron_gpt:tiny", f"data.files={place}/A,{place}/B", "train.steps=1", "--out", place / "blend")
    code, said = typed(*line)
    assert code == 2
    assert f"{place}/A/tokens and {place}/B/tokens were encoded by different tokenizers" in said
    assert typed(*line, f"train.accept={word(said)}")[0] == 0
    same = (command, "megatron_gpt:tiny", f"data.files={place}/A,{place}/D", "train.steps=1", "--out", place / "same")
    assert typed(*same)[0] == 0


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.idx"])
def test_files_that_grew_are_refused_at_every_opening(made: Path, place: Path, typed: Typed, name: str) -> None:
    with (made / "D" / name).open("ab") as file:
        file.write(b"\0\0")
    line = ("megatron_gpt:tiny", f"data.files={made / 'D'}")
    for words in (("check", *line), ("run", *line, "--out", place / "new"), ("eval", place / "run")):
        code, said = typed(*words)
        assert (code, f"{name}: has " in said or f"{name}: is damaged" in said) == (2, True), (words, said)


def test_the_order_belongs_to_it(place: Path) -> None:
    files = (str(place / "A"),)
    plain = identity(GptIndexed(files=files))
    assert plain.content == identity(GptIndexed(files=files, sequence=8)).content
    assert plain.order != identity(GptIndexed(files=files, sequence=8)).order
    weighted = (f"0.3:{place}/A", f"0.7:{place}/D")
    assert identity(GptIndexed(files=weighted)).order["weights"] == [0.3, 0.7]
    with pytest.raises(DataError, match="not found"):
        identity(GptIndexed(files=(str(place / "gone"),)))


def test_a_tokenizer_has_one_digest_in_each_form_that_it_is_read_from(place: Path) -> None:
    """The library's own output, and the content of a file."""
    from tokenizers import Tokenizer

    text = (place / "A" / "tokenizer.json").read_text()
    again = Tokenizer.from_str(text)
    again.enable_padding(length=8)
    again.enable_truncation(5)
    assert tokenizer_digest({"tokenizer.json": again.to_str()}) == tokenizer_digest({"tokenizer.json": text})
