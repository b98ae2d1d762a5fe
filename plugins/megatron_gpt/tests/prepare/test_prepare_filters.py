"""``recipe prepare gpt_indexed ... filters=...``, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe_core.cli.main import main
from recipe_megatron_gpt.data.corpus import train_tokenizer
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.prepare import indexed

Typed = Callable[..., tuple[int, str, str]]
LINE = ("inputs=lines.jsonl,blocks.txt", "documents=blank_line", "tokenizer=tokenizer.json", "engine=tokenizers")
FILTERS = "filters=[{gpt_filters:short: {least: 9}}, gpt_filters:mask]"
MODULE = """
def short(text, least=0):
    return len(text.split()) >= least, "too_short"

def mask(text):
    return text.replace("the", "THE")

def nothing(text):
    return False
"""


@pytest.fixture
def kept(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder to work in, with 50 JSON lines, some of them empty, and 40 blocks; the texts that the filters keep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    Path("gpt_filters.py").write_text(MODULE, encoding="utf-8")
    lines = ["a line\n" if n % 5 == 3 else "" if n % 9 == 8 else text for n, text in enumerate(texts[:50])]
    blocks = [text.replace("\n\n", "\n").strip() if n % 4 else "A block." for n, text in enumerate(texts[50:90])]
    Path("lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    Path("blocks.txt").write_text("\n\n\n".join(blocks), encoding="utf-8")
    train_tokenizer(texts, 400).save("tokenizer.json")
    read = [*lines, *(f"{block}\n" for block in blocks[:-1]), blocks[-1]]  # a block has its line ends
    return [text.replace("the", "THE") for text in read if len(text.split()) >= 9]


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_files_of_filtered_texts_equal_those_of_the_texts_that_are_kept(
    kept: list[str], typed: Typed, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = typed(*LINE, FILTERS, "output=ours", "workers=1")
    assert code == 0, err
    manifest = json.loads(Path("ours/manifest.json").read_text(encoding="utf-8"))
    short, mask = manifest["filters"]
    assert (short["filter"], mask["filter"]) == ("gpt_filters:short", "gpt_filters:mask")
    dropped = short["dropped"]["too_short"]
    assert short["documents"] == dropped + len(kept) == dropped + mask["documents"]
    assert manifest["counts"]["dropped"] == dropped
    assert short["samples"][0] == {"file": "lines.jsonl", "document": 4, "reason": "too_short", "text": "a line\n"}
    assert f"dropped {dropped} of {short['documents']} ({dropped} too_short)" in out
    Path("kept.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in kept), encoding="utf-8")
    assert typed("inputs=kept.jsonl", *LINE[1:], "output=theirs", "workers=1")[0] == 0
    for name in ("tokens.bin", "tokens.idx"):
        assert contents("ours")[name] == contents("theirs")[name]
    assert main(["inspect", "ours"]) == 0
    shown = capfd.readouterr().out
    assert "gpt_filters:short  dropped" in shown
    assert "gpt_filters:short: too_short: lines.jsonl, document 4: a line" in shown


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_merged_parts_and_workers_equal_one_process(
    kept: list[str], typed: Typed, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed, "CHUNK", 2000)
    assert typed(*LINE, FILTERS, "output=whole", "workers=2" if count == 1 else "workers=1")[0] == 0
    folders = [f"parts/{number}" for number in range(1, count + 1)]
    for number, folder in enumerate(folders, 1):
        code, _, err = typed(*LINE, FILTERS, "workers=1", f"output={folder}", f"part={number}/{count}")
        assert code == 0, err
    assert main(["prepare", "merge", "merged", *folders[::-1]]) == 0
    assert contents("merged") == contents("whole")
    assert main(["inspect", folders[0]]) == 0


def test_filters_that_drop_all_are_refused(kept: list[str], typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = typed(*LINE, "filters=gpt_filters:short,gpt_filters:nothing", "output=ours", "workers=1")
    assert code == 2
    assert "lines.jsonl, blocks.txt: the filters dropped all 86 documents (gpt_filters:nothing: 86 nothing)" in err
    assert not Path("ours").exists()
    for number in (1, 2):  # a part may be empty, and the merge refuses
        words = ("filters=gpt_filters:nothing", f"output=parts/{number}", f"part={number}/2", "workers=1")
        assert typed(*LINE, *words)[0] == 0
    assert main(["prepare", "merge", "merged", "parts/1", "parts/2"]) == 2
    assert "the filters dropped all 86 documents" in capfd.readouterr().err
    assert not Path("merged").exists()


def test_parts_with_other_filters_do_not_merge(
    kept: list[str], typed: Typed, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert typed(*LINE, FILTERS, "output=parts/1", "part=1/2", "workers=1")[0] == 0
    assert typed(*LINE, "filters=gpt_filters:mask", "output=parts/2", "part=2/2", "workers=1")[0] == 0
    assert main(["prepare", "merge", "merged", "parts/1", "parts/2"]) == 2
    assert "was prepared with filters=" in capfd.readouterr().err


def test_an_interrupted_preparation_counts_every_document_once(
    kept: list[str], typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(*LINE, FILTERS, "output=whole", "workers=1")[0] == 0
    monkeypatch.setattr(indexed, "CHUNK", 2000)
    monkeypatch.setattr("recipe_megatron_gpt.prepare.store.NOTE_EVERY", 0.0)
    add, calls = indexed.TokenStore.add, list[int]()

    def stop_at_third(store: indexed.TokenStore, part: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(store, part)  # type: ignore[arg-type]  # the chunk is passed on

    monkeypatch.setattr(indexed.TokenStore, "add", stop_at_third)
    assert typed(*LINE, FILTERS, "output=again", "workers=1")[0] != 0
    assert Path(".again.part").exists()
    monkeypatch.setattr(indexed.TokenStore, "add", add)
    assert typed(*LINE, FILTERS, "output=again", "workers=1")[0] == 0
    assert contents("again") == contents("whole")


def test_the_trained_tokenizer_reads_what_is_kept(kept: list[str], typed: Typed) -> None:
    Path("kept.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in kept), encoding="utf-8")
    line = (LINE[1], "vocab_size=300", "engine=tokenizers", "workers=1")
    assert typed(LINE[0], FILTERS, *line, "output=ours")[0] == 0
    assert typed("inputs=kept.jsonl", *line, "output=theirs")[0] == 0
    assert contents("ours")["tokenizer.json"] == contents("theirs")["tokenizer.json"]
    assert IndexedFile.open(Path("ours/tokens"), access="sequential").documents.size == len(kept) + 1
