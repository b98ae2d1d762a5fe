"""Checkpoints of every format with a byte changed, cut short, or with files exchanged: refused, or nothing is lost."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from recipe_bert_dp.model.bert import build as build_bert
from recipe_bert_dp.settings import BertPretraining
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.lazy import Lazy, same_bits
from recipe_core.checkpoint.locate import find
from recipe_core.checkpoint.state import gather_state
from recipe_core.errors import CheckpointError
from recipe_core.hooks.registry import Registry, load
from recipe_core.settings.fill import flat
from recipe_core.testing.checkpoints import convert
from recipe_megatron_gpt.model.gpt import build as build_gpt
from recipe_megatron_gpt.settings import Gpt

GPT = Gpt(layers=2, hidden=16, heads=2, positions=8, vocabulary=40, dropout=0.0, attention_dropout=0.0)
BERT = BertPretraining(size="custom", layers=1, hidden=16, heads=2, positions=8, vocabulary=40)
# The model, and the words of `recipe convert --to`.
SUMMED = {
    "dcp": ("gpt", "dcp"),
    "single": ("gpt", "single"),
    "megatron": ("gpt", "megatron", "tp=2", "pp=2"),
    "nxd": ("gpt", "nxd", "tp=2"),
    "nxd, xser": ("gpt", "nxd", "tp=2", "xser=true"),
    "nxd, old": ("gpt", "nxd", "layout=old", "pp=2"),
    "nxd, old, xser": ("gpt", "nxd", "layout=old", "tp=2", "xser=true"),
    "xser": ("gpt", "xser"),
    "neuron_bert": ("bert", "neuron_bert"),
}
"""Formats whose files have check sums: not one changed value may come out."""
BARE = {
    "hf": ("gpt", "hf"),
    "hf, several files": ("gpt", "hf", "shard_gb=1e-5"),
    "hf_trainer": ("bert", "hf"),
}
"""Those of safetensors, which has none: a changed value cannot be seen, and that is said."""
RANKS = [name for name in SUMMED if any(word.startswith(("tp=", "pp=")) for word in SUMMED[name])]
TRIES = 20


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a checkpoint of a format, as others write it: without a manifest of ours."""
    folder = tmp_path_factory.mktemp("damage")
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            model, form, *words = {**SUMMED, **BARE}[name]
            source = folder / model
            if not source.exists():
                _write(source, model)
            weights = ["--drop", "optimizer"] if name in BARE else []
            assert convert(source, folder / f"{name} made", "--to", form, *words, *weights) == 0
            made[name] = folder / f"{name} made"
            if name == "hf_trainer":
                (made[name] / "trainer_state.json").write_text('{"global_step": 2}')
            (made[name] / "checkpoint.json").unlink()
        return made[name]

    return make


def _write(folder: Path, model: str) -> None:
    """A model after two steps of AdamW, as dcp."""
    torch.manual_seed(5)
    config: Any = GPT if model == "gpt" else BERT
    module: torch.nn.Module = build_gpt(GPT)[0] if model == "gpt" else build_bert(BERT)[0]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in range(2):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
    folder.mkdir()
    Dcp().save(folder, {**gather_state(module, optimizer), "progress": {"step": 2, "consumed_samples": 16}})
    use = "gpt" if model == "gpt" else "bert_pretraining"
    sections = {"model": {"use": use, **asdict(config)}, "train": {"lr": 1e-3, "weight_decay": 0.1}}
    (folder / "job.yaml").write_text(yaml.safe_dump(sections))


def contents(registry: Registry, path: Path, form: str) -> dict[str, Any]:
    """Every value in it, read as `recipe convert` reads."""
    leaves = flat(find(registry, path, form).open())
    return {name: leaf.read() if isinstance(leaf, Lazy) else leaf for name, leaf in leaves}


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        tensors = [isinstance(value, torch.Tensor) for value in (a, b)]
        return same_bits(a, b) if all(tensors) else not any(tensors) and bool(a == b)

    return one.keys() == two.keys() and all(equal(value, two[name]) for name, value in one.items())


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "job.yaml")


def outcome(registry: Registry, path: Path, form: str) -> tuple[dict[str, Any] | None, str]:
    """The values, or why they were refused. Any other failure is a traceback for the user, and goes through."""
    try:
        return contents(registry, path, form), str(path)
    except CheckpointError as error:
        return None, str(error)


@contextmanager
def replaced(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def damages(folder: Path, seed: str, tries: int) -> Iterator[tuple[str, Path, bytes]]:
    """A byte changed somewhere in all files, and as often in a file's first or last 400 bytes; cuts."""
    chance = random.Random(seed)
    there = [path for path in files(folder) if path.stat().st_size]
    for number in range(tries):
        path = chance.choices(there, [p.stat().st_size for p in there])[0] if number % 2 else chance.choice(there)
        data = bytearray(path.read_bytes())
        edge = min(400, len(data))
        at = chance.randrange(len(data)) if number % 2 else chance.choice((1, -1)) * chance.randrange(edge)
        data[at] ^= 1 << chance.randrange(8)
        yield f"byte {at} of {path.name}", path, bytes(data)
        if number % 5 == 0:
            yield f"{path.name} cut", path, bytes(data[: chance.randrange(len(data))])


@pytest.mark.parametrize("name", SUMMED)
def test_no_changed_value_comes_out(checkpoint: Callable[..., Path], registry: Registry, name: str) -> None:
    folder, form = checkpoint(name), SUMMED[name][1]
    clean = contents(registry, folder, form)
    refused, changed, unnamed = 0, [], []
    for what, path, data in damages(folder, name, TRIES):
        with replaced(path, data):
            found, error = outcome(registry, folder, form)
        refused += found is None
        changed += [what] if found is not None and not same(clean, found) else []
        unnamed += [error] if str(folder) not in error else []
    assert changed == []
    assert unnamed == []
    assert refused > TRIES // 2  # others met padding, or what is not read
    assert find(registry, folder, form).unchecked() == ""


@pytest.mark.parametrize("name", BARE)
def test_what_cannot_be_checked_is_said(checkpoint: Callable[..., Path], registry: Registry, name: str) -> None:
    """Headers and indices are; names, shapes and types never change without a word."""
    folder, form = checkpoint(name), "hf_trainer" if name == "hf_trainer" else "hf"
    clean = contents(registry, folder, form)
    for _, path, data in damages(folder, name, TRIES):
        if path.suffix == ".safetensors" and len(data) == path.stat().st_size:
            header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
            data = data[:header] + path.read_bytes()[header:]
            with replaced(path, data):
                found = outcome(registry, folder, form)[0] or {}
            tensors = {key for key, value in found.items() if isinstance(value, torch.Tensor)}
            assert all(same_bits(found[key], clean[key]) for key in tensors & clean.keys())
        elif len(data) < path.stat().st_size and path.suffix == ".safetensors":
            with replaced(path, data), pytest.raises(CheckpointError):
                contents(registry, folder, form)
    said = find(registry, folder, form).unchecked()
    assert "safetensors" in said
    assert said.endswith("damage to them cannot be seen")


def test_convert_refuses_and_leaves_nothing(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the damage is met while the target is written: no abort of PyTorch's writer."""
    folder = checkpoint("megatron")
    path = files(folder)[1]
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data), len(data) // 8):
        data[at] ^= 4
    with replaced(path, bytes(data)):
        assert convert(folder, tmp_path / "out", "--to", "single", "--from", "megatron") == 2
    assert f"{path}: damaged, " in (shown := capsys.readouterr().err)
    assert "does not hold the bytes that were written (its check sum differs); get the file again" in shown
    assert list(tmp_path.iterdir()) == []


def test_convert_and_inspect_say_what_they_cannot_check(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from recipe_core.cli.main import main

    for name, expected in (("hf", True), ("xser", False)):
        folder = checkpoint(name)
        capsys.readouterr()
        assert convert(folder, tmp_path / name, "--to", "single") == 0
        assert main(["inspect", str(folder)]) == 0
        assert capsys.readouterr().out.count("not checked") == 2 * expected
        (tmp_path / name / "checkpoint.json").unlink()


@pytest.mark.parametrize("name", RANKS)
def test_files_of_two_ranks_are_not_exchanged(checkpoint: Callable[..., Path], registry: Registry, name: str) -> None:
    folder, form = checkpoint(name), SUMMED[name][1]
    for one, two in pairs(folder, name)[:8]:
        first, second = one.read_bytes(), two.read_bytes()
        with replaced(one, second), replaced(two, first):
            found, error = outcome(registry, folder, form)
        assert found is None, (one, two)
        assert str(folder) in error


def pairs(folder: Path, seed: str) -> list[tuple[Path, Path]]:
    """Files that differ, and whose names differ in numbers alone."""
    kinds: dict[str, list[Path]] = {}
    for path in files(folder):
        kinds.setdefault(re.sub(r"\d+", "#", str(path.relative_to(folder))), []).append(path)
    found = [pair for kind in kinds.values() for pair in combinations(kind, 2)]
    found = [(one, two) for one, two in found if one.read_bytes() != two.read_bytes()]
    random.Random(seed).shuffle(found)
    return found


@pytest.mark.parametrize("name", ["dcp", "nxd, old"])
def test_part_of_our_own_is_checked_by_its_manifest(
    tmp_path: Path, registry: Registry, checkpoint: Callable[..., Path], name: str
) -> None:
    """A folder or file inside a checkpoint of ours, which was given alone, was read without a look at its manifest."""
    _, form, *words = SUMMED[name]
    out = tmp_path / "out"
    assert convert(checkpoint("single"), out, "--to", form, *words) == 0
    path = next(path for path in files(out) if path.name != "checkpoint.json" and path.stat().st_size > 10_000)
    assert find(registry, path, form).manifest is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"is not a whole checkpoint: .*SHA-256 differs"):
        find(registry, path, form)
