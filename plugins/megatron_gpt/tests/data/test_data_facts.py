"""Facts that are known before anything runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.hooks.specs import DataFacts
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.facts import facts
from recipe_megatron_gpt.settings import GptIndexed


def test_facts_of_the_embedded_corpus_do_not_build_it() -> None:
    assert facts(GptIndexed(sequence=64, vocabulary=300)) == DataFacts(sequence=64, vocabulary=300)


def test_facts_count_the_samples_of_both_parts(write_tokens: Callable[..., str]) -> None:
    files = (write_tokens([10] * 100, "a"), write_tokens([7, 3] * 50, "b", "int32"))
    # 90 documents of 10 tokens: 900, less the last; 90 documents of 5 on average: 450, less the last.
    found = facts(GptIndexed(files=files, sequence=16, split=(9, 1)))
    assert found == DataFacts(sequence=16, train_samples=899 // 16 + 449 // 16, valid_samples=99 // 16 + 49 // 16)


def test_a_tokenizer_beside_the_files_tells_the_vocabulary(write_tokens: Callable[..., str], tmp_path: Path) -> None:
    prefix = write_tokens([100])
    corpus.train_tokenizer(["some words"], 300).save(str(tmp_path / "tokenizer.json"))
    size = 1 + 256 + sum(map(len, [("so", "me", "some"), ("Ġw", "or", "ds", "Ġwor", "Ġwords")]))
    assert facts(GptIndexed(files=(prefix,), sequence=4)).vocabulary == size


def test_every_problem_is_named(write_tokens: Callable[..., str], tmp_path: Path) -> None:
    good, cut, empty = (write_tokens([9, 9], name) for name in ("good", "cut", "empty"))
    Path(f"{cut}.idx").write_bytes(Path(f"{cut}.idx").read_bytes()[:-3])
    config = GptIndexed(
        files=(good, cut, str(tmp_path / "none"), empty), split=(0, 1), sequence=4, tokenizer=str(tmp_path / "t.json")
    )
    problems = facts(config).problems
    expected = [
        "the split 'train' gets 0 of its 2",
        "cut.idx: cut off",
        "none.idx: not found",
        "'train'",
        "t.json: not",
    ]
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))


def test_a_folder_that_lacks_a_file_or_both(write_tokens: Callable[..., str]) -> None:
    """It is the missing file that is named, not one beside the folder."""
    prefix = Path(write_tokens([9, 9]))
    folder = prefix.parent
    prefix.with_name("tokens.idx").unlink()
    (half,) = facts(GptIndexed(files=(str(folder),), sequence=4)).problems
    assert half.startswith(f"{folder}/tokens.idx: not found, though tokens.bin is there")
    prefix.with_name("tokens.bin").unlink()
    (neither,) = facts(GptIndexed(files=(str(folder),), sequence=4)).problems
    assert neither == f"{folder}: there are no token files (.bin and .idx) in this folder; name another"


@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_a_folder_named_as_a_file(write_tokens: Callable[..., str], tmp_path: Path, ending: str) -> None:
    """Who completes a name in a shell, or guesses it, may add an ending to the name of a folder that is right."""
    (tmp_path / "my").mkdir()
    write_tokens([400], "my/tokens")
    (problem,) = facts(GptIndexed(files=(f"{tmp_path}/my.{ending}",))).problems
    assert problem.endswith(f"not found; the folder {tmp_path}/my holds token files: data.files={tmp_path}/my")


def test_a_tokenizer_that_is_none_is_a_problem(write_tokens: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (problem,) = facts(GptIndexed(files=(write_tokens([100]),), sequence=4)).problems
    assert "tokenizer.json: is no tokenizer.json" in problem


def test_facts_import_neither_torch_nor_numpy(write_tokens: Callable[..., str]) -> None:
    code = (
        "import sys\n"
        "from recipe_megatron_gpt.settings import GptIndexed\n"
        "from recipe_megatron_gpt.data.facts import facts\n"
        f"assert facts(GptIndexed(files=({write_tokens([500])!r},), split=(1,))).train_samples == 1\n"
        "sys.exit(', '.join(sys.modules.keys() & {'torch', 'numpy', 'transformers', 'pydantic', 'yaml'}) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("size", "variant"), [(10, "own-1mb"), (10_000_000, "own-10mb"), (100_000_000, "own-100mb")])
def test_a_text_ends_in_the_lines_that_make_a_model_of_it(tmp_path: Path, size: int, variant: str) -> None:
    text = tmp_path / "my text.v1.txt"
    with text.open("wb") as file:
        file.truncate(size)  # takes no room on the disk
    (problem,) = facts(GptIndexed(files=(str(text),), sequence=4)).problems
    assert problem == (
        f"{text}: is no pair of token files (.bin and .idx); a text becomes one by\n"
        f"  recipe prepare gpt_indexed 'inputs={text}' 'output={text.with_suffix('')}' documents=blank_line\n"
        f"  recipe run megatron_gpt:{variant} 'data.files={text.with_suffix('')}' --out 'runs/my text.v1'\n"
        "  recipe generate 'runs/my text.v1'"
    )
