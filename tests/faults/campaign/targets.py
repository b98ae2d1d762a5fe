"""The files that the family ``hostile`` rewrites, and the commands that read each."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from odd import structures, texts

from recipe_core.checkpoint import manifest as manifests
from recipe_core.data.digest import verify_digest, with_digest
from recipe_core.files import digest

Write = Callable[[random.Random, Path, Path], None]
"""Makes the content hostile. Arguments: the generator, the file, the file that code in it would make."""


@dataclass(frozen=True)
class Target:
    """A kind of file, in a folder that :mod:`inputs` prepares."""

    source: str
    """Below it."""
    pattern: str
    """Which of its files."""
    write: Write
    commands: tuple[str, ...]
    """That read it; ``{}`` stands for the copy, ``{file}`` for the file, ``{out}`` for a new path, ``{here}`` for the
    folder of all inputs."""
    sealed: bool = False
    """The manifest beside it is written anew, as somebody does who wants the file to be read."""


def write(content: Callable[[random.Random, bytes, Path], bytes]) -> Write:
    """Write what a function makes of the sound content."""

    def writing(chance: random.Random, path: Path, canary: Path) -> None:
        path.write_bytes(content(chance, path.read_bytes(), canary))

    return writing


JSON = write(lambda chance, sound, canary: structures.odd_json(chance, json.loads(sound)))
ROWS = write(
    lambda chance, sound, canary: b"\n".join(
        structures.odd_json(chance, json.loads(line)).replace(b"\n", b" ") if chance.random() < 0.5 else line
        for line in sound.splitlines()
    )
)
PICKLE = write(lambda chance, sound, canary: structures.pickled(chance, canary))
YAML = write(lambda chance, sound, canary: structures.odd_yaml(chance, sound.decode(), canary))
LINES = write(lambda chance, sound, canary: texts.lines(chance, sound))
TEXT = write(lambda chance, sound, canary: texts.text(chance, sound))
PACKED = write(lambda chance, sound, canary: texts.packed(chance, sound))
HEADER = write(lambda chance, sound, canary: texts.ends(chance, sound))
SAFETENSORS = write(lambda chance, sound, canary: structures.odd_safetensors(chance, sound))
IDX = write(lambda chance, sound, canary: structures.odd_idx(chance, sound))


def rewritten_shard(chance: random.Random, path: Path, canary: Path) -> None:
    """Rewrite a shard."""
    structures.odd_hdf5(chance, path)


LOOK, CONVERT = ("inspect {}", "verify {}"), "convert {} {out} --to single"
READ = (*LOOK, CONVERT)
WEIGHTS = (*LOOK, f"{CONVERT} --drop optimizer")
ONE_STEP = "train.steps=1 train.timeout=240 --out {out}"
TOKENS = ("verify {}", "inspect {}", f"run megatron_gpt:tiny data.files={{}}/tokens {ONE_STEP}")
BERT = (*LOOK, f"run bert_dp:tiny data.files={{}} {ONE_STEP}")
BERT_PACKED = (*LOOK, f"run bert_dp:tiny data=bert_packed data.files={{}} {ONE_STEP}")
RESUME = ("run {}/job.yaml --out {}", "status {}", *LOOK)
TABLE = (f"run hf_finetune:tiny data.folder={{}} model.hidden=16 {ONE_STEP}",)
PREPARE = "prepare gpt_indexed documents=blank_line workers=1 output={out}/text"
TEXTS = (f"{PREPARE} inputs={{file}} tokenizer={{here}}/tokenizers/tokenizer.json",)
TOKENIZER = (f"{PREPARE} inputs={{text}} tokenizer={{file}}",)
VOCABULARY = ("prepare bert_hdf5 documents=blank_line workers=1 sequence=64 max_predictions=10 dupe_factor=1 "
              "inputs={text} vocabulary={file} output={out}/text",)  # fmt: skip
GOLDEN = ("run megatron_gpt:tiny model.hidden=32 train.log_every=1 train.golden={file} train.steps=1 --out {out}",)
TARGETS = {
    "archive": Target("bare single", "*.pt", structures.archive, READ),
    "archive of megatron": Target("bare megatron", "*.pt", structures.archive, READ),
    "archive of nxd": Target("bare nxd", "*.pt", structures.archive, READ),
    "archive of old nxd": Target("bare nxd, old", "*.pt", structures.archive, READ),
    "archive of a run": Target("run, single", "step-4/*.pt", structures.archive, RESUME[:1], sealed=True),
    "archive of neuron_bert": Target("run, neuron_bert", "step-4/*.pt", structures.archive, RESUME, sealed=True),
    "archive of hf_trainer": Target("run, hf_trainer", "step-4/*.pt", structures.archive, RESUME, sealed=True),
    "random states": Target("run, hf_trainer", "step-4/*.pth", structures.archive, RESUME, sealed=True),
    "arguments of hf_trainer": Target(
        "run, hf_trainer", "step-4/training_args.bin", structures.archive, RESUME, sealed=True
    ),
    "state of hf_trainer": Target("run, hf_trainer", "step-4/trainer_state.json", JSON, RESUME, sealed=True),
    "settings of hf_trainer": Target("run, hf_trainer", "step-4/config.json", JSON, RESUME, sealed=True),
    "weights of hf_trainer": Target("run, hf_trainer", "step-4/*.safetensors", SAFETENSORS, RESUME, sealed=True),
    "metadata": Target("bare dcp", ".metadata", PICKLE, READ),
    "metadata of a run": Target("run, dcp", "step-4/.metadata", PICKLE, RESUME, sealed=True),
    "xser": Target("bare xser", "checkpoint.xser", structures.archive, READ),
    "tensor of xser": Target("bare xser", "tensor_*.pt", structures.archive, READ),
    "xser of nxd": Target("bare nxd, xser", "*.pt", structures.archive, READ),
    "manifest": Target("dcp", "checkpoint.json", JSON, READ),
    "manifest of a run": Target("run, dcp", "step-4/checkpoint.json", JSON, RESUME),
    "settings of a checkpoint": Target("bare dcp", "job.yaml", YAML, READ),
    "settings": Target("run, dcp", "job.yaml", YAML, ("show {file}", "check {file}", "status {}")),
    "metrics": Target("run, dcp", "metrics.jsonl", ROWS, ("compare {} {}", *RESUME[:2])),
    "metrics of hf_trainer": Target("run, hf_trainer", "metrics.jsonl", ROWS, ("compare {} {}", *RESUME[:2])),
    "golden curve": Target("whole run, dcp", "metrics.jsonl", ROWS, GOLDEN),
    "results": Target("run, dcp", "results.json", JSON, ("status {}", "compare {} {}", RESUME[0])),
    "launch record": Target("run, dcp", "process.json", JSON, ("status {}", "stop {}", RESUME[0])),
    "safetensors": Target("bare hf", "*.safetensors", SAFETENSORS, WEIGHTS),
    "index": Target("bare hf, several files", "*.index.json", JSON, WEIGHTS),
    "pytorch_model.bin": Target("bare hf, bin", "*.bin", structures.archive, WEIGHTS),
    "config.json": Target("bare hf", "config.json", JSON, WEIGHTS),
    "idx": Target("gpt/text", "*.idx", IDX, TOKENS),
    "manifest of tokens": Target("gpt/text", "manifest.json", JSON, TOKENS),
    "tokenizer": Target("gpt/text", "tokenizer.json", JSON, (*TOKENS[:2], *TOKENIZER)),
    "vocab.json": Target("tokenizers", "vocab.json", JSON, TOKENIZER),
    "merges.txt": Target("tokenizers", "merges.txt", LINES, TOKENIZER),
    "vocab.txt": Target("tokenizers", "vocab.txt", LINES, (*VOCABULARY, *TOKENIZER)),
    "shard": Target("bert", "*.hdf5", rewritten_shard, BERT),
    "packed shard": Target("packed", "*.hdf5", rewritten_shard, BERT_PACKED),
    "manifest of shards": Target("packed", "*.json", JSON, BERT_PACKED),
    "table of tabs": Target("tables/tsv", "*.tsv", LINES, TABLE),
    "table of commas": Target("tables/csv", "*.csv", LINES, TABLE),
    "table of objects": Target("tables/jsonl", "*.jsonl", ROWS, TABLE),
    "table in JSON": Target("tables/json", "*.json", JSON, TABLE),
    "table in Parquet": Target("tables/parquet", "*.parquet", HEADER, TABLE),
    "lines": Target("texts", "*.jsonl", ROWS, TEXTS),
    "text": Target("texts", "*.txt", TEXT, TEXTS),
    "pages": Target("texts", "*.xml", TEXT, TEXTS),
    "rows in Parquet": Target("texts", "*.parquet", HEADER, TEXTS),
    "rows in Arrow": Target("texts", "*.arrow", HEADER, TEXTS),
    "gzip": Target("texts", "*.gz", PACKED, TEXTS),
    "bzip2": Target("texts", "*.bz2", PACKED, TEXTS),
}


def reseal(folder: Path) -> None:
    """Write the manifest of a checkpoint anew, for the files that are there."""
    path = folder / manifests.NAME
    content = verify_digest(path.read_text())
    for name, facts in content["files"].items():
        if (folder / name).is_file() and not (folder / name).is_symlink():
            facts |= {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)}
    path.write_text(json.dumps(with_digest(content)))
