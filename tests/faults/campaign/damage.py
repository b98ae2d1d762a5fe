"""A file of a checkpoint, a data set or a run folder is flipped, cut or lost: it is named, or nothing is changed."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import inputs
from cases import Family
from forked import Curve, Ended, copied, curve, recipe
from inputs import CACHED, CONVERTED, DATA, RUNS, TABLES, TEXTS, TOKENIZERS

from recipe_core.testing.checkpoints import equal, tensors

KINDS = (
    *RUNS, *RUNS, *CONVERTED, *(f"bare {name}" for name in CONVERTED), *DATA, *DATA, *CACHED, "job",
    *TOKENIZERS, *(f"table, {kind}" for kind in TABLES), *(f"text, {kind}" for kind in TEXTS),
)  # fmt: skip
PACKED = ("text, txt.gz", "text, txt.bz2")
"""Texts with check sums: not one changed letter may come out."""
DAMAGES = ("flip", "flip", "flip", "cut", "zero", "noise", "append", "empty", "lose", "lose folder", "repeat")


@dataclass(frozen=True)
class Damage:
    """One damage to one file."""

    kind: str
    file: float
    """Which file: the position in their sorted list, from 0 to 1."""
    how: str
    where: float
    """The position in the file, from 0 to 1."""
    bit: int
    length: int

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.how} at {self.where:.6f} of file {self.file:.3f}, {self.length} bytes, bit {self.bit}"
        )


def draw(chance: random.Random) -> Damage:
    """Mostly one bit; headers, which are at both ends of files, as often as all the rest."""
    how = chance.choice(DAMAGES)
    where = chance.choice((chance.random(), chance.random() * 0.01, 1 - chance.random() * 0.01))
    return Damage(
        chance.choice(KINDS), chance.random(), how, where, chance.randrange(8), chance.choice((1, 2, 16, 512, 4096))
    )


def damaged(data: bytes, what: Damage) -> bytes | None:
    """The content after it; None for no file."""
    at = min(int(what.where * len(data)), max(len(data) - 1, 0))
    block = data[at : at + what.length]
    noise = random.Random(f"{what.where}").randbytes(len(block))
    changed = {
        "flip": bytes(byte ^ 1 << what.bit for byte in block[:1]),
        "zero": bytes(len(block)),
        "noise": noise,
        "repeat": block * 2,
    }
    if what.how in changed:
        skipped = 1 if what.how == "flip" else len(block)
        return data[:at] + changed[what.how] + data[at + skipped :]
    return {"cut": data[:at], "append": data + noise, "empty": b"", "lose": None, "lose folder": None}[what.how]


def do(what: Damage, root: Path) -> tuple[Path, bool]:
    """Damage one file below ``root``, or ``root`` itself; which, and true if it changed."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.endswith(".lock")) or [root]
    path = files[int(what.file * len(files))]
    before = path.read_bytes()
    after = damaged(before, what)
    if after is not None:
        path.write_bytes(after)
    elif what.how == "lose folder" and path.parent != root and path != root:
        shutil.rmtree(path.parent)
    else:
        path.unlink()
    return path, after != before and not _same_json(path, before, after)


def _same_json(path: Path, before: bytes, after: bytes | None) -> bool:
    """True if only the white space of a manifest is another one, which its digest does not count."""
    try:
        return after is not None and path.suffix == ".json" and bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


def attempt(what: Damage, base: Path, folder: Path) -> str:
    """Damage a copy, and have every command look at it."""
    here = base / "inputs"
    for kinds, try_it in ((RUNS, _run), (DATA, _data), (CACHED, _cache), (TOKENIZERS, _tokenizer), (("job",), _job)):
        if what.kind in kinds:
            return try_it(what, here, folder)
    if what.kind.startswith(("table, ", "text, ")):
        return (_table if what.kind.startswith("table") else _text)(what, here, folder)
    return _checkpoint(what, here, folder)


def named(ended: Ended, *paths: Path) -> bool:
    """True if its output names any of the paths, beside the line of the command."""
    said = ended.text.partition("\n")[2]
    return any(path.name in said for path in paths)


def _looked(path: Path, folder: Path) -> tuple[str, Ended]:
    """Faults of `verify` and `inspect`, and the first of them."""
    verify = recipe(["verify", str(path)], folder)
    inspect = recipe(["inspect", str(path)], folder)
    ill = verify.ill(0, 1, 2) or inspect.ill(0, 2)
    return (f"verify or inspect: {ill}" if ill else ""), verify


def _run(what: Damage, here: Path, folder: Path) -> str:
    out = copied(here / what.kind, folder / "run")
    path, changed = do(what, out)
    ill, verify = _looked(out, folder)
    below = path.relative_to(out).parts
    in_checkpoint = below[0] == "checkpoints" and (out / "checkpoints" / below[1]).exists()
    if not ill and changed and in_checkpoint and (verify.code == 0 or not named(verify, path, out / below[1])):
        return f"verify did not name {path.relative_to(out)}: {verify.code}, {verify.text[-200:]}"
    again = recipe([*inputs.run_words(what.kind, here), "--out", str(out)], folder)
    ill = ill or again.ill(0, 2)
    if not ill and again.code == 2 and not named(again, path, path.parent):
        ill = f"the run did not name {path.name}: {again.text[-300:]}"
    if ill or again.code:
        return ill
    known = 4 if path.name == "metrics.jsonl" else 0  # its rows are as they are; those of the new steps must be right
    whole: Curve = curve(here / f"whole {what.kind}", known)
    return "" if curve(out, known) == whole else f"{path.relative_to(out)}: other losses, and no word: {curve(out)}"


def _checkpoint(what: Damage, here: Path, folder: Path) -> str:
    copy, bare = copied(here / what.kind, folder / "copy"), what.kind.startswith("bare ")
    path, changed = do(what, copy)
    ill, verify = _looked(copy, folder)
    if path.name == "checkpoint.json" and what.how in ("lose", "lose folder"):
        bare = True  # the folder is one that others may have written; its own check sums count
    if not ill and changed and not bare and (verify.code == 0 or not named(verify, path, copy)):
        ill = f"verify did not name {path.name}: {verify.code}, {verify.text[-200:]}"
    words = ["--drop", "optimizer"] if "hf" in what.kind else []
    converted = recipe(["convert", str(copy), str(folder / "converted"), "--to", "single", *words], folder)
    if ill := ill or converted.ill(0, 2):
        return ill
    if converted.code:
        return "" if not (folder / "converted").exists() else "a refused conversion left something"
    weights_alone = "hf" in what.kind or "the source has no optimizer states" in converted.text
    if equal(tensors(folder / "converted"), tensors(here / "single")) or (
        weights_alone and _weights(folder / "converted") == _weights(here / "single")
    ):
        return ""
    said = "not checked" in converted.text or "cannot be seen" in converted.text
    return "" if said or verify.code else f"{path.name}: other values, and no word"


def _weights(path: Path) -> dict[str, bytes]:
    """The weights alone."""
    found = tensors(path)
    return {name: found[name].numpy().tobytes() for name in sorted(found) if name.startswith("model")}


def _data(what: Damage, here: Path, folder: Path) -> str:
    place = copied(here / DATA[what.kind], folder / "text")
    path, changed = do(what, place)
    ill, verify = _looked(place, folder)
    if path.name == "manifest.json" and what.how in ("lose", "lose folder"):  # a data set that others may have made
        ill = ill or ("" if "not checked: there is no manifest.json" in verify.text else "verify promises too much")
    elif not ill and changed and (verify.code == 0 or not named(verify, path, path.parent)):
        ill = f"verify did not name {path.name}: {verify.code}, {verify.text[-200:]}"
    if ill:
        return ill
    if what.kind == "gpt":
        line = ["megatron_gpt:tiny", f"data.files={place}/tokens"]
    else:
        line = [
            "bert_dp:tiny",
            f"data={'bert_packed' if what.kind == 'packed' else 'bert_hdf5'}",
            f"data.files={place}",
        ]
    return _trained(line, folder, place, 65)


def _trained(line: list[str], folder: Path, place: Path, *codes: int) -> str:
    """Train two steps; a refusal names something in ``place``."""
    ended = recipe(["run", *line, "train.steps=2", "train.timeout=240", "--out", str(folder / "run")], folder)
    ill = ended.ill(0, 2, *codes)
    return ill or ("" if ended.code != 2 or named(ended, place) else f"{place.name} is not named: {ended.text[-300:]}")


def _table(what: Damage, here: Path, folder: Path) -> str:
    """The rows have no check sums: what is refused is named."""
    place = copied(here / "tables" / what.kind.partition(", ")[2], folder / "rows")
    do(what, place)
    line = ["hf_finetune:tiny", f"data.folder={place}", "model.hidden=16", "data.max_length=16"]
    return _trained(line, folder, place, 65)


def _cache(what: Damage, here: Path, folder: Path) -> str:
    """The run refuses it, or makes it anew."""
    place = copied(here / what.kind, folder / "cache")
    path, _ = do(what, place)
    out = folder / "run"
    words = ["run", *CACHED[what.kind], "--out", str(out)]
    ended = recipe(words, folder, {"RECIPE_CACHE": str(place)})
    if ill := ended.ill(0, 2):
        return ill
    if ended.code:
        return "" if named(ended, path, path.parent) else f"{path.name} is not named: {ended.text[-300:]}"
    return "" if curve(out) == curve(here / f"whole {what.kind}") else f"{path.name}: other losses, and no word"


def _text(what: Damage, here: Path, folder: Path) -> str:
    """Texts with check sums are refused, or give the same tokens."""
    kind = what.kind.partition(", ")[2]
    path, _ = do(what, copied(here / "texts" / f"text.{kind}", folder / f"text.{kind}"))
    ended = recipe(inputs.text_words(path, folder / "out", here), folder)
    made = folder / "out" / "text" / "tokens.bin"
    if ill := ended.ill(0, 2):
        return ill
    if ended.code:
        return "a refused preparation left a data set" if made.exists() else "" if named(ended, path) else "not named"
    same = made.read_bytes() == (here / f"tokens of {kind}" / "text" / "tokens.bin").read_bytes()
    return "" if same or what.kind not in PACKED else f"{path.name}: other tokens, and no word"


def _job(what: Damage, here: Path, folder: Path) -> str:
    copied(here / "run, dcp" / "job.yaml", folder / "job.yaml")
    path, _ = do(what, folder / "job.yaml")
    for command in ("show", "check"):
        ended = recipe([command, str(path)], folder)
        if ill := ended.ill(0, 1, 2):
            return f"{command}: {ill}"
    return ""


def _tokenizer(what: Damage, here: Path, folder: Path) -> str:
    place = copied(here / "tokenizers", folder / "words")
    path, _ = do(what, place / what.kind)
    text = (f"inputs={here}/texts/text.txt", "documents=blank_line", "workers=1", f"output={folder}/out/text")
    if what.kind == "vocab.txt":
        words = ["bert_hdf5", f"vocabulary={path}", "sequence=64", "max_predictions=10", "dupe_factor=1", *text]
    else:
        words = ["gpt_indexed", f"tokenizer={path}", *text]
    ended = recipe(["prepare", *words], folder)
    if ill := ended.ill(0, 2):
        return ill
    return "" if not ended.code or named(ended, path) else f"{path.name} is not named: {ended.text[-200:]}"


FAMILY = Family("damage", 3, draw, attempt, inputs.prepare)
