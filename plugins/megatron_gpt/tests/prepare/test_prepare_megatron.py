"""Token files against those of Megatron-LM's own preprocess_data: many scripts, code, all characters, empty documents.

With MEGATRON_LM naming a folder of Megatron-LM's source (release core_v0.17 runs without a GPU), its tool makes what is
compared; otherwise the packages that it is made of do, in the order in which it calls them.
"""

from __future__ import annotations

import gettext
import json
import os
import subprocess
import sys
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_megatron_gpt.data.corpus import train_tokenizer

pytestmark = pytest.mark.peer
DATA = Path(os.environ["RECIPE_DATA"])
LOCALES = Path("/usr/share/locale")
SCRIPTS = {
    "latin": ("LATIN", ("de", "fr", "tr", "vi")),
    "cyrillic": ("CYRILLIC", ("ru", "uk", "sr")),
    "arabic": ("ARABIC", ("ar", "fa", "ur")),
    "devanagari": ("DEVANAGARI", ("hi", "mr", "ne")),
    "cjk and thai": ("CJK UNIFIED IDEOGRAPH|HIRAGANA|HANGUL|THAI", ("zh_CN", "ja", "ko", "th")),
}
"""How Unicode names the letters, and languages whose translated messages a Linux machine may have."""
MOST = 300_000
"""Characters of messages of each language."""
SURROGATES = range(0xD800, 0xE000)


def messages(language: str) -> Iterator[str]:
    """The translated messages that this machine has, one document for each program."""
    length = 0
    for path in sorted(LOCALES.glob(f"{language}/LC_MESSAGES/*.mo")):
        try:
            with path.open("rb") as file:
                found = gettext.GNUTranslations(file)._catalog.values()  # type: ignore[attr-defined]
        except (OSError, UnicodeDecodeError, ValueError):
            continue
        yield "\n".join(text for text in found if text)
        length += sum(map(len, found))
        if length > MOST:
            return


def letters(names: str) -> str:
    """All characters of a script in words of different lengths, with signs and digits between them."""
    found = [c for c in map(chr, range(0x20000)) if unicodedata.name(c, "").startswith(tuple(names.split("|")))]
    words = ["".join(found[at : at + 1 + at % 7]) for at in range(0, len(found), 3)]
    return "".join(f"{word}{(' ', ', ', '. ', '', ' 12 ', chr(10))[n % 6]}" for n, word in enumerate(words))


def characters() -> Iterator[str]:
    """All characters: side by side and, as far as any are assigned, each beside letters, digits and spaces."""
    numbers = [number for number in range(0x110000) if number not in SURROGATES]
    for at in range(0, len(numbers), 128):
        block = "".join(map(chr, numbers[at : at + 128]))
        yield block
        if at < 0x34000:
            yield "".join(f"a{c}1 {c}東{c}" for c in block)


def code() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    yield from (path.read_text("utf-8") for path in sorted(library.glob("[a-h]*.py")))


def documents(kind: str) -> list[str]:
    if kind == "characters":
        return list(characters())
    if kind == "code":
        return list(code())
    if kind == "empty":
        return [
            "",
            "One.",
            "",
            " \n\t",
            "",
            "\u3000",
            "Two.",
            "a\x00b\r\nc",
            "\ufeff",
            "<|endoftext|> x  <|endoftext|>",
            "",
        ]
    names, languages = SCRIPTS[kind]
    return [letters(names), *(text for language in languages for text in messages(language))]


def peers_folder(folder: Path, name: str, texts: list[str]) -> Path:
    """The tokenizer as transformers reads it, in a folder that is named as Megatron-LM asks for it."""
    gpt2 = folder / "gpt2"
    gpt2.mkdir(parents=True)
    if name == "gpt2":
        if not (DATA / "gpt2" / "vocab.json").is_file():
            pytest.skip(f"{DATA} (RECIPE_DATA) has no gpt2/vocab.json")
        for file in ("vocab.json", "merges.txt"):
            (gpt2 / file).write_bytes((DATA / "gpt2" / file).read_bytes())
    else:
        train_tokenizer(texts, 3000).model.save(str(gpt2))
    (gpt2 / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (gpt2 / "config.json").write_text('{"model_type": "gpt2"}')
    return gpt2


def by_tool(source: Path, gpt2: Path, prefix: Path, *, eod: bool) -> Path:
    """The command of Megatron-LM itself."""
    megatron = Path(os.environ["MEGATRON_LM"])
    words = ["--input", source, "--output-prefix", prefix, "--workers", "1", "--tokenizer-type", "GPT2BPETokenizer"]
    words += ["--vocab-file", gpt2 / "vocab.json", "--merge-file", gpt2 / "merges.txt", *["--append-eod"] * eod]
    command = [sys.executable, "-W", "ignore", str(megatron / "tools" / "preprocess_data.py"), *map(str, words)]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(megatron)}
    done = subprocess.run(
        command, cwd=gpt2.parent, env={**os.environ, **offline}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return prefix.with_name(f"{prefix.name}_text_document")


def by_packages(source: Path, gpt2: Path, prefix: Path, *, eod: bool) -> Path:
    """The command's ids of each line, with the end unless there are none, and a sequence for it, too."""
    peer = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    tokenizer: Any = pytest.importorskip("transformers").GPT2TokenizerFast.from_pretrained(str(gpt2))
    builder = peer.IndexedDatasetBuilder(f"{prefix}.bin", dtype=peer.DType.optimal_dtype(len(tokenizer)))
    with source.open(encoding="utf-8") as file:
        for line in file:
            ids = tokenizer(json.loads(line)["text"]).input_ids
            ids += [tokenizer.eos_token_id] * (eod and bool(ids))
            builder.add_document(ids, [len(ids)] * bool(ids))
    builder.finalize(f"{prefix}.idx")
    return prefix


@pytest.mark.parametrize("tokenizer", ["gpt2", "trained"])
@pytest.mark.parametrize("kind", [*SCRIPTS, "code", "characters", "empty", "empty without ends"])
def test_the_bytes_of_preprocess_data(
    tmp_path: Path, typed: Callable[..., tuple[int, str, str]], kind: str, tokenizer: str
) -> None:
    pytest.importorskip("gigatoken")
    texts = documents(kind.removesuffix(" without ends"))
    source, eod = tmp_path / "text.jsonl", not kind.endswith(" without ends")
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    gpt2 = peers_folder(tmp_path / "peer", tokenizer, texts)
    make = by_tool if "MEGATRON_LM" in os.environ else by_packages
    theirs = make(source, gpt2, tmp_path / "theirs", eod=eod)
    for engine in ("tokenizers", "gigatoken"):
        line = (f"inputs={source}", f"tokenizer={gpt2}", f"output={tmp_path / engine}", f"engine={engine}")
        code, _, err = typed(*line, f"append_eod={str(eod).lower()}")
        assert code == 0, err
        for ending in (".bin", ".idx"):
            ours = (tmp_path / engine / f"tokens{ending}").read_bytes()
            assert ours == theirs.with_name(f"{theirs.name}{ending}").read_bytes(), (engine, ending)
