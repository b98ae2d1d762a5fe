"""``recipe prepare gpt_indexed ... part=K/N`` and ``recipe prepare merge``, as a user types them."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_megatron_gpt.data.corpus import train_tokenizer
from recipe_megatron_gpt.prepare import indexed

Typed = Callable[..., tuple[int, str, str]]
INPUTS = "inputs=lines.jsonl,packed.jsonl.gz,empty.txt,blocks.txt,last.jsonl"
LINE = (INPUTS, "documents=blank_line", "tokenizer=tokenizer.json", "engine=tokenizers", "workers=1")


@pytest.fixture
def site(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in: JSON lines with empty documents, CRLF and no final newline; text in blocks; gzip."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": text}, ensure_ascii=number % 2 == 0) for number, text in enumerate(texts[:90])]
    lines[7] = lines[70] = json.dumps({"text": ""})
    lines[8] = json.dumps({"text": " \n"})
    Path("lines.jsonl").write_bytes("\r\n".join(lines).encode())
    Path("packed.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[:20]).encode(), mtime=0))
    Path("empty.txt").touch()
    blocks = [text.replace("\n\n", "\n").strip() for text in texts[90:180]]
    Path("blocks.txt").write_bytes("\r\n \r\n\n".join(blocks).encode())
    Path("last.jsonl").write_bytes("\n".join([*lines[40:60], "", ""]).encode())
    train_tokenizer(texts, 400).save("tokenizer.json")
    return tmp_path


def files(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def make(typed: Typed, count: int, *words: str, line: Sequence[str] = LINE) -> list[str]:
    """Prepare all parts in random order; their folders, in another."""
    numbers = [*range(1, count + 1)]
    random.Random(count).shuffle(numbers)
    for number in numbers:
        code, _, err = typed(*line, *words, f"output=parts/{number}", f"part={number}/{count}")
        assert code == 0, err
    return [f"parts/{number}" for number in random.Random(-count).sample(numbers, count)]


def merge(capfd: pytest.CaptureFixture[str], output: str, *parts: str) -> tuple[int, str, str]:
    code = main(["prepare", "merge", output, *parts])
    out, err = capfd.readouterr()
    return code, out, err


def refused(answer: tuple[int, str, str], *expected: str) -> None:
    """One sentence, exit code 2, and nothing under the final name."""
    code, _, err = answer
    assert code == 2, err
    *_, message = err.splitlines()
    assert message.startswith("recipe prepare: ")
    assert err.count("recipe prepare: ") == 1
    for text in expected:
        assert text in message
    assert not Path("merged").exists()
    assert not Path(".merged.part").exists()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_merged_parts_equal_one_process(
    site: Path, typed: Typed, count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed(*LINE, "output=whole")[0] == 0
    code, out, err = merge(capfd, "merged", *make(typed, count))
    assert code == 0, err
    assert files("merged") == files("whole")
    assert "written to  merged" in out
    assert main(["verify", "merged"]) == 0
    assert not [path.name for path in site.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "words",
    [
        ("split_sentences=true",),
        ("empty_documents=drop", "append_eod=false"),
        ("documents=file",),
        ("encoding=cp1252", "errors=replace", "most_replaced=1"),
        ("max_document=100", "on_error=skip"),
    ],
)
def test_settings_that_change_the_documents(
    site: Path, typed: Typed, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    line = [word for word in LINE if word.partition("=")[0] not in {w.partition("=")[0] for w in words}]
    assert typed(*line, *words, "output=whole")[0] == 0
    code, _, err = merge(capfd, "merged", *make(typed, 4, *words, line=line))
    assert code == 0, err
    assert files("merged") == files("whole")


def test_more_parts_than_documents(site: Path, typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    Path("few.jsonl").write_text('{"text": "the data"}\n{"text": "end."}')
    line = ("inputs=few.jsonl", *LINE[1:])
    assert typed(*line, "output=whole")[0] == 0
    code, _, err = merge(capfd, "merged", *make(typed, 9, line=line))
    assert code == 0, err
    assert files("merged") == files("whole")


@pytest.mark.slow
def test_a_thousand_parts(site: Path, typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(*LINE, "output=whole")[0] == 0
    code, _, err = merge(capfd, "merged", *make(typed, 1001))
    assert code == 0, err
    assert files("merged") == files("whole")


def test_the_bytes_of_a_part_do_not_depend_on_workers_or_blocks(
    site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(*LINE, "output=one", "part=2/3")[0] == 0
    monkeypatch.setattr(indexed, "CHUNK", 300)
    assert typed(*LINE[:-1], "workers=2", "output=two", "part=2/3")[0] == 0
    assert files("one") == files("two")


KILLED = """
import os, sys
from recipe_core.cli.main import main
from recipe_core.data.prepare import parts
from recipe_megatron_gpt.prepare import indexed, store

indexed.CHUNK, store.NOTE_EVERY = 300, 0.0
where, left = sys.argv[1], int(sys.argv[2])
kind = store.TokenStore if where == "add" else parts
function = getattr(kind, where)

def dies(*arguments):
    global left
    function(*arguments)
    left -= 1
    if not left:
        os.kill(os.getpid(), 9)

setattr(kind, where, dies)
main(sys.argv[3:])
"""


def killed(where: str, after: int, *words: str) -> None:
    command = [sys.executable, "-c", KILLED, where, str(after), "prepare", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_killed_part_continues_to_the_same_bytes(site: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(*LINE, "output=whole", "part=2/3")[0] == 0
    killed("add", 9, "gpt_indexed", *LINE, "output=out", "part=2/3")
    assert not Path("out").exists()
    killed("add", 4, "gpt_indexed", *LINE, "output=out", "part=2/3")
    entries = [json.loads(text) for text in Path(".out.part/journal.jsonl").read_text().splitlines()]
    assert entries[-1]["state"]["read"] > 0
    assert typed(*LINE, "output=out", "part=2/3")[0] == 0
    assert files("out") == files("whole")


@pytest.mark.parametrize("copies", [1, 4, 8])
def test_a_killed_merge_leaves_nothing_and_can_be_repeated(
    site: Path, typed: Typed, copies: int, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = make(typed, 3)
    killed("_copy", copies, "merge", "merged", *parts)
    assert not Path("merged").exists()
    assert merge(capfd, "merged", *parts)[0] == 0
    assert typed(*LINE, "output=whole")[0] == 0
    assert files("merged") == files("whole")
    assert not Path(".merged.part").exists()


def test_what_a_part_refuses(site: Path, typed: Typed) -> None:
    train = [word for word in LINE if not word.startswith("tokenizer")]
    refused(
        typed(*train, "output=merged", "part=1/2"), "tokenizer: part= needs a tokenizer that exists", "train it first"
    )
    refused(typed(*LINE, "output=merged", "part=0/2"), "part: expected K/N")


def test_parts_that_do_not_belong_together(
    site: Path, typed: Typed, texts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    parts = make(typed, 2)
    one, two = "parts/1", "parts/2"
    refused(merge(capfd, "merged", one), "part 2/2 is missing; prepare it with part=2/2")
    refused(merge(capfd, "merged", one, two, one), f"{one}: is part 1/2, as {one} is; name each part once")
    assert typed(*LINE, "output=other", "part=2/3")[0] == 0
    refused(merge(capfd, "merged", one, "other"), "is part 2/3, and parts/1 is part 1/2")
    refused(
        merge(capfd, "merged", "other"), "part 1/3 is missing, and 1 more; prepare it with part=1/3, and name all 3"
    )
    assert typed(*LINE, "eod=the", "output=eod", "part=2/2")[0] == 0
    refused(merge(capfd, "merged", one, "eod"), "eod: was prepared with eod=the, and parts/1 with <|endoftext|>")
    assert typed(*LINE, "output=whole")[0] == 0
    refused(merge(capfd, "merged", one, "whole"), "whole: is a whole data set, so it is no part")
    refused(merge(capfd, "merged", one, "nowhere"), "nowhere: has no manifest.json, so it is no part")
    code, _, err = merge(capfd, "whole", *parts)
    assert code == 2
    assert err.endswith("recipe prepare: output: whole exists; name another folder before the parts\n")
    assert main(["prepare", "merge", "merged"]) == 2
    assert "recipe prepare merge OUTPUT PARTS..." in capfd.readouterr().err
    Path("tokenizer.json").unlink()
    train_tokenizer(texts, 290).save("tokenizer.json")
    assert typed(*LINE, "output=tokenizer", "part=2/2")[0] == 0
    refused(merge(capfd, "merged", one, "tokenizer"), "tokenizer: was prepared with", "prepare both with the same")
    assert merge(capfd, "merged", *parts)[0] == 0


def test_parts_of_other_inputs(site: Path, typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    make(typed, 2)
    data = Path("blocks.txt").read_bytes()
    Path("blocks.txt").write_bytes(data.swapcase())
    assert typed(*LINE, "output=changed", "part=2/2")[0] == 0
    whole = json.loads(Path("parts/1/manifest.json").read_text())
    refused(
        merge(capfd, "merged", "parts/1", "changed"), "changed: read other bytes from ", " of blocks.txt than parts/1"
    )
    assert any(entry["path"] == "blocks.txt" for entry in whole["inputs"])
    Path("blocks.txt").write_bytes(data + b"more")
    assert typed(*LINE, "output=longer", "part=2/2")[0] == 0
    refused(
        merge(capfd, "merged", "parts/1", "longer"),
        "longer: was prepared from 5 files of",
        "prepare all parts from the same",
    )


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.sizes", "tokens.documents", "tokenizer.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["changed", "short", "missing"])
def test_damaged_parts(site: Path, typed: Typed, name: str, damage: str, capfd: pytest.CaptureFixture[str]) -> None:
    parts = make(typed, 2)
    path = Path("parts/2", name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "changed" else data[:-3])
    if damage == "missing":
        path.unlink()
    expected = (
        f"parts/2/{name}: " if (name, damage) != ("manifest.json", "missing") else "parts/2: has no manifest.json"
    )
    refused(merge(capfd, "merged", *parts), expected)
    if path.is_file() or name != "manifest.json":
        assert main(["verify", "parts/2"]) == 1


def test_the_encoding_is_judged_over_all_pieces(site: Path, typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    Path("lines.jsonl").write_bytes(b'{"text": "caf\xe9"}\n' * 16)
    line = ("inputs=lines.jsonl", *LINE[1:])
    parts = make(typed, 2, line=line)
    refused(merge(capfd, "merged", *parts), "lines.jsonl: 16 places in 272 bytes are not utf-8")
    assert typed(*line, "output=whole")[0] == 2


def test_inputs_without_text(site: Path, typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    Path("lines.jsonl").write_bytes(b'{"text": ""}\n' * 16)
    parts = make(typed, 2, line=("inputs=lines.jsonl", *LINE[1:]))
    refused(merge(capfd, "merged", *parts), "lines.jsonl: there is no text in any document; name other inputs")


def test_inspection_of_a_part(site: Path, typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    make(typed, 2)
    assert main(["verify", "parts/1"]) == 0
    assert "no problem found" in capfd.readouterr().out
    assert main(["inspect", "parts/1"]) == 0
    assert "part 1/2 of a gpt_indexed" in capfd.readouterr().out


def test_the_folders_may_have_moved(site: Path, typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    parts = make(typed, 2)
    assert typed(*LINE, "output=whole")[0] == 0
    shutil.move("parts", "a=b")
    for name in ("lines.jsonl", "tokenizer.json"):
        Path(name).unlink()
    assert merge(capfd, "merged", *(part.replace("parts", "a=b") for part in parts))[0] == 0
    assert files("merged") == files("whole")
