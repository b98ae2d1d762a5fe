"""``recipe prepare gpt_indexed``, as a user types it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from recipe_core.cli.main import main
from recipe_core.errors import ExitCode
from recipe_megatron_gpt.data.corpus import train_tokenizer
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.prepare import indexed, store
from recipe_megatron_gpt.settings import GptIndexed

END = "<|endoftext|>"
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def site(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with JSON lines and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    train_tokenizer(texts, 400).save("tokenizer.json")
    return tmp_path


LINE = ("inputs=text.jsonl", "tokenizer=tokenizer.json", "engine=tokenizers")


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def sequences(folder: str) -> list[list[int]]:
    file = IndexedFile.open(Path(folder) / "tokens")
    return [file.sequence(number).tolist() for number in range(file.sizes.size)]


def test_every_document_with_its_end(site: Path, typed: Typed, texts: list[str]) -> None:
    code, out, err = typed(*LINE, "output=out")
    assert code == 0, err
    tokenizer = Tokenizer.from_file("tokenizer.json")
    expected = [[*tokenizer.encode(text).ids, tokenizer.token_to_id(END)] for text in texts]
    assert sequences("out") == expected
    file = IndexedFile.open(Path("out/tokens"))
    assert file.tokens.dtype == np.uint16
    assert file.documents.tolist() == list(range(301))
    assert sorted(files("out")) == ["manifest.json", "tokenizer.json", "tokens.bin", "tokens.idx"]
    assert sorted(p.name for p in site.iterdir()) == ["out", "text.jsonl", "tokenizer.json"]
    assert re.search(r"documents +300\n", out)
    assert err.startswith("tokens: ")


def test_the_manifest_says_what_it_was_made_from(site: Path, typed: Typed) -> None:
    assert typed(*LINE, "output=out")[0] == 0
    manifest = json.loads(Path("out/manifest.json").read_text())
    text = Path("text.jsonl").read_bytes()
    assert manifest["inputs"] == [
        {"path": "text.jsonl", "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    ]
    for name, facts in manifest["files"].items():
        data = Path("out", name).read_bytes()
        assert facts == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    size = Tokenizer.from_file("tokenizer.json").get_vocab_size()
    assert (manifest["kind"], manifest["dtype"], manifest["vocabulary"]) == ("gpt_indexed", "uint16", size)
    assert manifest["counts"]["tokens"] == len(Path("out/tokens.bin").read_bytes()) // 2
    assert not {"output", "overwrite", "workers", "engine"} & manifest["settings"].keys()


def test_the_bytes_do_not_depend_on_the_workers(site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(*LINE, "output=one", "workers=1")[0] == 0
    monkeypatch.setattr(indexed, "CHUNK", 1000)
    assert typed(*LINE, "output=two", "workers=2")[0] == 0
    assert files("one") == files("two")


def test_workers_that_cannot_help_are_not_started(site: Path, typed: Typed) -> None:
    assert typed(*LINE, "output=one", "workers=1")[0] == 0
    code, _, err = typed(*LINE, "output=many", "workers=64")
    assert code == 0
    assert "recipe prepare: workers=64 is lowered to 1: there is no work for more than 1\n" in err
    assert files("one") == files("many")


INTERRUPTED = """
import os, sys
from recipe_core.cli.main import main
from recipe_megatron_gpt.prepare import indexed, store

indexed.CHUNK, store.NOTE_EVERY = 1000, 0.0
add, added = store.TokenStore.add, 0

def add_some(self, part):
    global added
    add(self, part)
    added += 1
    if added == int(sys.argv[1]):
        for file in self._files:
            file.write(b"what no entry of the journal knows")
            file.flush()
        os.kill(os.getpid(), 9)

store.TokenStore.add = add_some
main(sys.argv[2:])
"""


def killed(after: int, *words: str) -> None:
    """Run the command and kill it after some chunks."""
    command = [sys.executable, "-c", INTERRUPTED, str(after), "prepare", "gpt_indexed", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "train"])
def test_a_killed_run_continues_to_the_same_bytes(
    site: Path, typed: Typed, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("inputs=text.jsonl", "engine=tokenizers", f"tokenizer={tokenizer}")
    line += ("vocab_size=350",) if tokenizer == "train" else ()
    assert typed(*line, "output=whole")[0] == 0
    killed(30, *line, "output=out")
    assert not Path("out").exists()
    killed(20, *line, "output=out")
    entries = [json.loads(text) for text in Path(".out.part/journal.jsonl").read_text().splitlines()]
    read = entries[-1]["state"]["read"]
    assert 0 < read < 300
    seen: list[int] = []
    tokenise = indexed.ChunkEncoder.__call__
    monkeypatch.setattr(
        indexed.ChunkEncoder, "__call__", lambda self, chunk: seen.append(len(chunk)) or tokenise(self, chunk)
    )
    monkeypatch.setattr(indexed, "train_tokenizer", lambda *_: pytest.fail("it was trained already"))
    assert typed(*line, "output=out")[0] == 0
    assert sum(seen) == 300 - read
    assert files("out") == files("whole")
    assert not Path(".out.part").exists()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_stopped_while_it_finishes(site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(*LINE, "output=whole")[0] == 0
    for target, step in ((store.TokenStore, "remove_parts"), (indexed.Output, "finish")):
        with monkeypatch.context() as patch:
            patch.setattr(target, step, interrupt)
            assert typed(*LINE, "output=out")[0] == 130
    assert typed(*LINE, "output=out")[0] == 0
    assert files("out") == files("whole")


def test_sentences_are_sequences(site: Path, typed: Typed) -> None:
    Path("two.jsonl").write_text('{"text": "One sentence. And another one! A third."}\n{"text": "Last."}\n')
    assert typed("inputs=two.jsonl", "tokenizer=tokenizer.json", "output=out", "split_sentences=true")[0] == 0
    tokenizer = Tokenizer.from_file("tokenizer.json")
    end = tokenizer.token_to_id(END)
    parts = ["One sentence.", "And another one!", "A third.", "Last."]
    expected = [tokenizer.encode(part).ids for part in parts]
    assert sequences("out") == [expected[0], expected[1], [*expected[2], end], [*expected[3], end]]
    assert IndexedFile.open(Path("out/tokens")).documents.tolist() == [0, 3, 4]


def test_no_end_of_documents(site: Path, typed: Typed) -> None:
    Path("two.txt").write_text("One.\n\nTwo.\n")
    line = ("inputs=two.txt", "documents=blank_line", "tokenizer=tokenizer.json", "append_eod=false", "eod=none")
    assert typed(*line, "output=out")[0] == 0
    tokenizer = Tokenizer.from_file("tokenizer.json")
    assert sequences("out") == [tokenizer.encode("One.\n").ids, tokenizer.encode("Two.\n").ids]


def test_truncation_that_a_tokenizer_asks_for_is_not_done(site: Path, typed: Typed) -> None:
    tokenizer = Tokenizer.from_file("tokenizer.json")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save("cutting.json")
    assert typed(*LINE, "output=whole")[0] == 0
    assert typed("inputs=text.jsonl", "tokenizer=cutting.json", "engine=tokenizers", "output=out")[0] == 0
    assert files("out")["tokens.bin"] == files("whole")["tokens.bin"]


def test_a_large_vocabulary_takes_wider_tokens(site: Path, typed: Typed) -> None:
    plain = json.loads(Path("tokenizer.json").read_text())
    beyond = len(plain["model"]["vocab"])
    plain["model"]["vocab"] |= {f"unused{number}": number for number in range(beyond, 65_500)}
    Path("large.json").write_text(json.dumps(plain))
    assert typed(*LINE, "output=narrow")[0] == 0
    assert typed("inputs=text.jsonl", "tokenizer=large.json", "engine=tokenizers", "output=wide")[0] == 0
    wide = IndexedFile.open(Path("wide/tokens"))
    assert wide.tokens.dtype == np.int32
    assert np.array_equal(wide.tokens, IndexedFile.open(Path("narrow/tokens")).tokens)


def test_the_folder_is_what_a_run_reads(site: Path, typed: Typed, run_of: Callable[..., Any]) -> None:
    assert typed(*LINE, "output=out")[0] == 0
    config = GptIndexed(files=("out",), sequence=16)
    batch = build(config, run_of(steps=1, global_batch=2, micro_batch=2)).read("train", 0, 2)
    assert batch["tokens"].shape == (2, 16)
    assert config.files == ("out",)


def test_training_reads_no_more_than_it_is_told(site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def train(texts: Any, size: int) -> Tokenizer:
        taken.extend(texts)
        return train_tokenizer(taken, size)

    monkeypatch.setattr(indexed, "train_tokenizer", train)
    line = ("inputs=text.jsonl", "tokenizer=train", "vocab_size=300", "train_characters=20000", "output=out")
    # The reader takes the small file in one piece, so that nothing tells where in it a document stands.
    with gzip.open("text.jsonl.gz", "wb") as file:
        file.write(Path("text.jsonl").read_bytes())
    assert typed(*line, "engine=tokenizers")[0] == 0
    assert 0 < sum(map(len, taken)) <= 20000 + 1000
    assert Tokenizer.from_file("out/tokenizer.json").get_vocab_size() == 300


def test_a_tokenizer_is_trained_unless_one_is_named(site: Path, typed: Typed) -> None:
    """With as many entries as the default model has room for, or fewer where the text is small."""
    assert typed("inputs=text.jsonl", "output=default")[0] == 0
    assert typed("inputs=text.jsonl", "output=named", "tokenizer=train", "vocab_size=8192")[0] == 0
    names = ("tokens.bin", "tokens.idx", "tokenizer.json")
    assert [files("default")[name] for name in names] == [files("named")[name] for name in names]


def damaged(name: str, text: str | bytes) -> Callable[[], None]:
    return lambda: Path(name).write_bytes(text if isinstance(text, bytes) else text.encode()) and None


def made(name: str) -> None:
    Path(name).mkdir()
    Path(name, "manifest.json").write_text("{}")


MISTAKES: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "no setting at all": (lambda: None, [], "inputs: expected at least one file"),
    "a setting that is unknown": (lambda: None, [*LINE, "output=o", "tokeniser=x"], "tokeniser: no such setting; did"),
    "a setting without a value": (lambda: None, [*LINE, "output=o", "out-put=5"], "'out-put=5': expected setting=val"),
    "two names": (lambda: None, ["gpt", *LINE], "expected one data set"),
    "a broken line": (
        damaged("b.jsonl", '{"text": "a"}\n{"text": \n'),
        ["inputs=b.jsonl", "tokenizer=tokenizer.json", "output=o"],
        "b.jsonl:2: the line is not valid JSON",
    ),
    "no UTF-8": (
        damaged("b.txt", b"a \xff b"),
        ["inputs=b.txt", "tokenizer=tokenizer.json", "output=o", "errors=strict"],
        "b.txt:1: byte 2 of the text is not utf-8",
    ),
    "nothing in it": (
        damaged("b.txt", ""), ["inputs=b.txt", "tokenizer=tokenizer.json", "output=o"], "there is nothing in the file",
    ),
    "no end of a document": (
        lambda: None, [*LINE, "output=o", "eod=</s>"],
        "eod: tokenizer.json has no token '</s>', which is to end each document; set eod=<|endoftext|>, which it has",
    ),
    "no tokenizer": (
        lambda: None, ["inputs=text.jsonl", "tokenizer=no.json", "output=o"], "no.json: not found; tokenizer takes a",
    ),
    "a file that is no tokenizer": (
        damaged("t.json", '{"a": 1}'), ["inputs=text.jsonl", "tokenizer=t.json", "output=o"],
        "t.json: is no tokenizer.json (it has no key 'model')",
    ),
    "random ids": (
        damaged("t.json", '{"model": {"dropout": 0.1}}'), ["inputs=text.jsonl", "tokenizer=t.json", "output=o"],
        "t.json: its ids are random (model.dropout is 0.1)",
    ),
    "half of GPT-2's files": (
        damaged("vocab.json", "{}"), ["inputs=text.jsonl", "tokenizer=vocab.json", "output=o"],
        "merges.txt: not found, though vocab.json is there",
    ),
    "an output that exists": (lambda: made("o"), [*LINE, "output=o"], "output: o exists; name another folder"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_message_and_leaves_nothing(site: Path, typed: Typed, what: str) -> None:
    damage, words, message = MISTAKES[what]
    damage()
    before = sorted(site.rglob("*"))
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert sorted(site.rglob("*")) == before


def test_broken_lines_are_left_out_and_counted_on_demand(site: Path, typed: Typed) -> None:
    Path("b.jsonl").write_text('{"text": "a"}\n{"text": \n{"text": "b"}\n{"text": ""}\n')
    assert typed("inputs=b.jsonl", "tokenizer=tokenizer.json", "output=out", "on_error=skip")[0] == 0
    counts = json.loads(Path("out/manifest.json").read_text())["counts"]
    assert (counts["documents"], counts["skipped"], counts["empty"]) == (3, 1, 1)


BLANKS = ["", "a", "", " \n", "", "b", "", ""]


@pytest.mark.parametrize("eod", [True, False])
def test_empty_documents_stay_as_megatron_keeps_them(site: Path, typed: Typed, eod: bool) -> None:
    """An empty one is a document without any sequence, and without an end; one of white space is text."""
    Path("b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in BLANKS))
    line = ("inputs=b.jsonl", "tokenizer=tokenizer.json", "engine=tokenizers", f"append_eod={str(eod).lower()}")
    assert typed(*line, "output=out")[0] == 0
    tokenizer = Tokenizer.from_file("tokenizer.json")
    end = [tokenizer.token_to_id(END)] * eod
    assert sequences("out") == [[*tokenizer.encode(text).ids, *end] for text in BLANKS if text]
    assert IndexedFile.open(Path("out/tokens")).documents.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    counts = json.loads(Path("out/manifest.json").read_text())["counts"]
    assert (counts["documents"], counts["sequences"], counts["empty"]) == (8, 3, 6)
    assert main(["verify", "out"]) == 0
    assert main(["inspect", "out"]) == 0
    assert typed(*line, "output=dropped", "empty_documents=drop")[0] == 0
    assert sequences("dropped") == [[*tokenizer.encode(text).ids, *end] for text in ("a", "b")]
    assert IndexedFile.open(Path("dropped/tokens")).documents.tolist() == [0, 1, 2]
    assert main(["verify", "dropped"]) == 0


def test_plain_text_without_text_is_no_document(site: Path, typed: Typed) -> None:
    Path("texts").mkdir()
    for name, text in (("a.txt", "One.\n\n \n\nTwo."), ("b.txt", ""), ("c.txt", " \n")):
        Path("texts", name).write_text(text)
    line = ("inputs=texts", "documents=blank_line", "tokenizer=tokenizer.json", "output=out")
    assert typed(*line)[0] == 0
    assert IndexedFile.open(Path("out/tokens")).documents.tolist() == [0, 1, 2]


def test_the_token_type_follows_the_number_of_tokens_as_in_megatron(site: Path, typed: Typed) -> None:
    """Ids may leave gaps: Megatron counts tokens; where an id would not fit, tokens are wide all the same."""
    plain = json.loads(Path("tokenizer.json").read_text())
    for name, number, dtype in (("fits", 65_535, np.uint16), ("not", 65_536, np.int32)):
        plain["model"]["vocab"]["unused"] = number
        Path(f"{name}.json").write_text(json.dumps(plain))
        assert typed("inputs=text.jsonl", f"tokenizer={name}.json", "engine=tokenizers", f"output={name}")[0] == 0
        assert IndexedFile.open(Path(name, "tokens")).tokens.dtype == dtype


def test_no_space_is_told_before(site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    code, _, err = typed(*LINE, "output=out")
    assert code == ExitCode.DISK_FULL
    assert re.search(r"the token file, as far as .* needs 0\.1 MB and 0\.0 MB are free", err)
    assert not Path("out").exists()


def test_a_disk_that_gets_full_is_told_and_the_run_continues(
    site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(*LINE, "output=whole")[0] == 0
    monkeypatch.setattr(indexed, "CHUNK", 1000)
    monkeypatch.setattr(store, "NOTE_EVERY", 0.0)
    with monkeypatch.context() as patch:
        calls: list[Path] = []

        def full(path: Path) -> None:
            calls.append(path)
            if len(calls) > 30:
                raise OSError(28, os.strerror(28))

        patch.setattr(store, "sync", full)
        code, _, err = typed(*LINE, "output=out")
    assert code == ExitCode.DISK_FULL
    assert "out: cannot be written (No space left on device); free some space and give the same command again" in err
    assert not Path("out").exists()
    assert typed(*LINE, "output=out")[0] == 0
    assert files("out") == files("whole")


def test_an_input_that_changes_meanwhile_is_noticed(site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = store.TokenStore.finish

    def touched(self: Any, counts: Any) -> None:
        finish(self, counts)
        os.utime("text.jsonl", ns=(0, 0))

    monkeypatch.setattr(store.TokenStore, "finish", touched)
    code, _, err = typed(*LINE, "output=out")
    assert code == 2
    assert "text.jsonl: changed while it was read" in err
    assert not Path("out").exists()


def test_a_list_of_what_can_be_prepared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare"]) == 0
    out = capsys.readouterr().out
    assert "gpt_indexed" in out
    assert "settings: inputs, format, documents" in out


@pytest.mark.parametrize(
    "words", [("inputs=.",), ("inputs=out/tokenizer.json", "format=text"), ("inputs=text.jsonl", "tokenizer=out")]
)
def test_overwriting_never_takes_what_it_reads(site: Path, typed: Typed, words: tuple[str, ...]) -> None:
    assert typed(*LINE, "output=out")[0] == 0
    for path in Path("out").glob("tokens.*"):
        path.rename(path.with_name(f".{path.name}"))  # no text, which would be refused before
    before = files("out")
    code, _, err = typed(*LINE, *words, "output=out", "overwrite=true")
    assert code == 2
    assert "output: out holds what this preparation reads (" in err
    assert files("out") == before


def test_a_file_beside_the_tokens_is_named_and_stays(site: Path, typed: Typed) -> None:
    assert typed(*LINE, "output=out")[0] == 0
    Path("out/thesis.tex").write_text("mine")
    before = files("out")
    code, _, err = typed(*LINE, "output=out", "overwrite=true")
    assert (code, "does not list (thesis.tex)" in err, files("out")) == (2, True, before)
