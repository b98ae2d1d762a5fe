"""The commands of the documentation, run page by page in a folder with small versions of the files that they need.

Runs use the variant ``tiny`` and few steps instead of the page's; commands that change nothing (ls, show, check,
doctor) run unchanged. Commands that need several machines, a hub, or a package that is not installed are skipped;
docs/check.py parses every command.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("README.md", "core/*.md", "csrc/*.md", "plugins/*/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "chain.md"  # test_chain.py types it
)
LOOKS = {"ls", "show", "check", "doctor"}
ANSWERS = {"check": {0, 2}, "doctor": {0, 1}}
"""Valid exit codes of commands that report whether something fits or works here."""
SMALL = {
    r"((?:model\.recipe=)?)(megatron_gpt|llama|bert_dp|bert_tp|hf_finetune)"
    r"(:(small|base|large\S*|6\.7b\S*|\d+[mb]))?": r"\1\2:tiny",
    r"hf_finetune:mrpc": "hf_finetune:tiny data.task=mrpc",
    r"train\.steps=2400": "train.steps=16",
    r"train\.stop_after=100": "train.stop_after=4",
    r"train\.save_every=50": "train.save_every=2",
    r"train\.global_batch=24576": "train.global_batch=16",
    r"train\.seeds=5": "train.seeds=2",
    r"(.*)step-(1300|650|600)": r"\1step-8",
    r"megatron_gpt:own-1mb": "megatron_gpt:own-1mb model.layers=1 train.steps=8",
    r"sequence=512": "sequence=64",
    r"documents=blank_line": "documents=blank_line vocab_size=512",
    r"max_predictions=80": "max_predictions=10",
    r"8": "2",
}
"""Arguments that would take long, as patterns, and their replacements."""
REFUSED = {"recipe run runs/filtered wrapper.filtered.least=20"}
"""Commands whose page shows the message with which they are refused."""
SHARDS = "sequence=64 max_predictions=10"
"""The longest samples that the model of ``bert_dp:tiny`` takes."""
PARSED = {
    "precompile": "a device that compiles",
    "mail -s": "a program that sends mail",
    "--to k8s": "a cluster",
    "--to sky": "a cluster",
    "--on slurm": "a cluster",
    "--on ray": "Ray",
    "prepare merge data/wiki parts": "parts of several machines",
    "inputs=unique/": "the output of datatrove's pipelines",
    "runs/big": "a cluster",
    "torchrun": "several machines",
    "srun": "several machines",
    "sst2": "a hub",
    "Llama-3.2-1B": "a hub",
}
"""Parts of commands that cannot run here, and what they need."""


def lines(page: Path) -> list[str]:
    """Return the lines of the page's shell commands that call ``recipe``."""
    blocks = re.findall(r"^```(?:bash|console|sh|shell)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    text = "\n".join(blocks).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in text.splitlines() if "recipe" in shlex.split(line, comments=True)]


def needs(line: str) -> str:
    """Return the missing requirement of a line; empty if it can run."""
    for word, need in PARSED.items():
        if word in line:
            return need
    if "engine=xla" in line and find_spec("torch_xla") is None:
        return "torch-xla"
    if "filters=" in line and find_spec("datatrove") is None:
        return "datatrove"
    if "--tasks" in line and find_spec("lm_eval") is None:
        return "lm-evaluation-harness"
    installed = {entry.name for entry in entry_points(group="recipe.plugins")}
    return "the example of a plugin" if "run counting" in line and "counting" not in installed else ""


def small(line: str) -> str:
    """Return the call of ``recipe`` in a line, made small."""
    plain = re.sub(r"\$'(.*?)'", lambda found: shlex.quote(found[1].replace("\\t", "\t")), line)  # Bash's own quotes
    words = shlex.split(plain, comments=True)
    words = words[words.index("recipe") + 1 :]
    if words[0] in LOOKS and ">" not in words:
        return shlex.join(words)
    for pattern, change in SMALL.items():
        words = [new for word in words for new in _replaced(pattern, change, word)]
    if words[0] == "prepare" and "bert_hdf5" in words and "sequence=64" not in words:
        words += SHARDS.split()
    if "train.resume=" in line and "train.steps" not in line:
        words.append("train.steps=16")
    if words[0] == "run" and "bert_tp:tiny" in words and "--processes" not in words:
        words += ["--processes", "2"]
    return shlex.join(words).replace(" '>' ", " > ")


def _replaced(pattern: str, change: str, word: str) -> list[str]:
    """Return the replacement of ``word`` if all of it matches ``pattern``, else ``word``."""
    return re.sub(rf"^{pattern}$", change, word).split() if re.fullmatch(pattern, word) else [word]


def recipe(folder: Path, command: str, *, refused: bool = False) -> None:
    """Run ``recipe COMMAND`` in ``folder``; it must end as its page says."""
    words, _, target = command.partition(" > ")
    done = subprocess.run(
        [sys.executable, "-m", "recipe_core.cli", *shlex.split(words)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, input="The\n",
    )  # fmt: skip
    expected = {2} if refused else ANSWERS.get(words.split(" ")[0], {0})
    ended_well = done.returncode in expected and "Traceback" not in done.stderr
    assert ended_well, f"recipe {command}\n{done.stdout}{done.stderr}"
    if target:
        (folder / target).write_text(done.stdout, encoding="utf-8")


def write_text_files(folder: Path) -> None:
    """Write a dump, JSON lines, tokenizers, and pairs of sentences under the names that the pages use."""
    import pydoc_data.topics

    articles = [" ".join(text.split()) for text in pydoc_data.topics.topics.values()][:40]
    pages = "".join(
        f"<page><title>Topic {i}</title><ns>0</ns><id>{i}</id>"
        f"<revision><id>{i}</id><text>{text}</text></revision></page>"
        for i, text in enumerate(re.sub("[<&>{}|=*#:;'\\[\\]]", " ", article) for article in articles)
    )
    import bz2

    dump = bz2.compress(f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{pages}</mediawiki>'.encode())
    (folder / "dump").mkdir()
    for path in (folder / "dump" / "enwiki.xml.bz2", folder / "enwiki.xml.bz2"):
        path.write_bytes(dump)
    (folder / "my.txt").write_text("\n\n".join(articles))
    (folder / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in articles))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *'.,()-_`"/!?', *letters, *(f"##{c}" for c in letters)]
    pieces += [f"[unused{i}]" for i in range(1000 - len(pieces))]
    (folder / "bert").mkdir()
    for path in (folder / "vocab.txt", folder / "bert" / "vocab.txt"):
        path.write_text("\n".join(pieces) + "\n")
    (folder / "bert" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    write_byte_tokenizer(folder / "gpt2")
    pairs = [("The cat sat on the mat.", "A cat was sitting on the mat.", 1), ("It rains.", "He sold two cars.", 0)]
    rows = [f"{label}\t{i}\t{i + 1}\t{a}\t{b}\n" for i in range(16) for a, b, label in pairs]
    (folder / "mrpc").mkdir()
    for part in ("train", "test"):
        heading = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (folder / "mrpc" / f"msr_paraphrase_{part}.txt").write_text(heading + "".join(rows), encoding="utf-8")
    (folder / "prompts.txt").write_text("The first\nThe second\n")
    heading = "sentence1\tsentence2\tlabel\n"
    (folder / "labelled.tsv").write_text(heading + "".join(f"{a}\t{b}\t{label}\n" for a, b, label in pairs))
    table = "title,body,text,kind\n" + "".join(f"{a},{b},{a},{['no', 'yes'][c]}\n" for a, b, c in pairs * 16)
    for name in ("train.csv", "dev.csv", "a.csv", "b.csv"):
        (folder / name).write_text(table)


def write_byte_tokenizer(folder: Path) -> None:
    """Write GPT-2's two files without merges: every byte is a token."""
    folder.mkdir()
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [256 + i for i in range(256 - len(printable))]
    tokens = {chr(code): i for i, code in enumerate([*printable, *others])}
    (folder / "vocab.json").write_text(json.dumps({**tokens, "<|endoftext|>": 256}, ensure_ascii=False), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every file, run and checkpoint that a page needs."""
    folder = tmp_path_factory.mktemp("world")
    write_text_files(folder)
    for command in (
        "prepare gpt_indexed inputs=notes.jsonl tokenizer=gpt2/ output=data/wiki",
        "prepare gpt_indexed inputs=notes.jsonl tokenizer=gpt2/ output=data/books",
        f"prepare bert_hdf5 inputs=enwiki.xml.bz2 vocabulary=vocab.txt output=data/phase1 {SHARDS}",
        "prepare bert_packed inputs=data/phase1 output=data/phase2-packed",
        "run megatron_gpt:tiny --out runs/first",
        "run megatron_gpt:tiny data.files=data/wiki --out runs/gpt",
        "run bert_dp:tiny data.files=data/phase1 --out runs/bert",
        "run hf_finetune:tiny data.task=mrpc data.folder=mrpc --out runs/mrpc",
        "convert runs/bert scripts --to neuron_bert",
        "convert runs/gpt shards --to nxd tp=2",
        "convert runs/bert output --to nxd tp=2 layout=old",
    ):
        recipe(folder, command)
    for copy in ("data/phase2", "shards512"):
        shutil.copytree(folder / "data" / "phase1", folder / copy)
    shutil.copytree(folder / "data" / "books", folder / "data" / "law, part 1")
    (folder / "data" / "train.txt").write_text("books\n", encoding="utf-8")
    for copy in ("phase1", "phase2"):
        shutil.copytree(folder / "runs" / "bert", folder / "runs" / copy)
    for copy in ("second", "third"):
        shutil.copytree(folder / "runs" / "first", folder / "runs" / copy)
    shutil.copytree(folder / "runs" / "gpt", folder / "runs" / "other")
    (script,) = (folder / "scripts").glob("*.pt")
    script.rename(folder / "ckpt_28125.pt")
    shutil.rmtree(folder / "scripts")
    (folder / "output" / "job.yaml").unlink()  # as a script leaves it
    (folder / "output" / "checkpoint.json").unlink()
    return folder


MADE_HERE = {
    "docs/how-to/compare-runs.md": ["data"],
    "docs/how-to/convert-checkpoints.md": ["gpt2", "output"],
    "docs/how-to/machines/gpu.md": ["runs"],
    "docs/how-to/prepare-data.md": ["data"],
    "docs/how-to/pretrain-bert.md": ["data", "runs"],
    "docs/how-to/resume.md": ["runs/third"],
    "docs/tutorials/first-run.md": ["runs"],
    "docs/tutorials/bert.md": ["runs"],
    "docs/explanation.md": ["data"],
    "plugins/bert_dp/README.md": ["runs"],
}
"""Files of ``world`` that the commands of a page make themselves."""


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [p for p in PAGES if not all(map(needs, lines(p)))], ids=str)
def test_every_command_of_a_page_runs(page: Path, world: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    shutil.copytree(world, folder)
    for name in MADE_HERE.get(page.relative_to(ROOT).as_posix(), []):
        shutil.rmtree(folder / name)
    if page.match("migration/bert.md"):  # where these are BERT's
        shutil.rmtree(folder / "shards")
        (folder / "shards512").rename(folder / "shards")
    failures = []
    for line in lines(page):
        if needs(line):
            continue
        try:
            recipe(folder, small(line), refused=line in REFUSED)
        except AssertionError as failure:
            failures.append(f"{line}\n{failure}")
    assert not failures, "\n\n".join(failures)
