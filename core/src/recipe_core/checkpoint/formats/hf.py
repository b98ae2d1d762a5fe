"""The checkpoint format ``hf``: a folder that Hugging Face's ``from_pretrained`` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.io.safetensors import read_tensors, write_tensors
from recipe_core.checkpoint.lazy import Lazy, lazy
from recipe_core.checkpoint.settings import HfSettings
from recipe_core.errors import CheckpointError
from recipe_core.files.documents import DocumentError, parse_json, read_json, read_text

SAFE, BIN = "model.safetensors", "pytorch_model.bin"
CONFIG = "config.json"
TEXTS = (
    CONFIG, "generation_config.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
"""Text files that are read and written with the tensors."""


class Hf(Format):
    """``model.safetensors`` with ``config.json`` and the tokenizer's files; large models as several files.

    Its state has the foreign naming ``hf``: the model's tensors and ``files``, but no optimizer. It also reads older
    folders with ``pytorch_model.bin``, with ``weights_only=True``.
    """

    name = "hf"

    def __init__(self, config: HfSettings | None = None) -> None:
        self._max_bytes = (config or HfSettings()).shard_gb * 1e9

    def save(self, path: Path, state: Mapping[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state`` into the empty folder ``path``, in one process.

        Raises:
            CheckpointError: safetensors does not support a dtype.
            OSError: the disk is full or cannot be written.
        """
        tensors = {name: lazy(tensor) for name, tensor in state["model"].items()}
        parts = list(_parts(tensors, self._max_bytes))
        for number, names in enumerate(parts, 1):
            file = path / (SAFE if len(parts) == 1 else _part_name(number, len(parts)))
            write_tensors(file, {name: tensors[name] for name in names})
        if len(parts) > 1:
            places = {name: _part_name(i, len(parts)) for i, names in enumerate(parts, 1) for name in names}
            size = sum(tensor.nbytes for tensor in tensors.values())
            index = {"metadata": {"total_size": size}, "weight_map": places}
            (path / f"{SAFE}.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        for name, text in _with_dtype(state.get("files", {}), tensors).items():
            (path / name).write_text(text, encoding="utf-8")

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Return the whole checkpoint as a state of lazy tensors.

        Raises:
            CheckpointError: a file is missing or damaged, or holds more than weights.
        """
        folder = path if path.is_dir() else path.parent
        tensors: dict[str, Any] = {}
        for file, names in _files(path).items():
            stored = read_tensors(file) if file.suffix == ".safetensors" else _pickled(file)
            if missing := names - stored.keys():
                raise CheckpointError(
                    f"{file}: {min(missing)} is not in it, where the index has it; they are not of one checkpoint"
                )
            if twice := tensors.keys() & stored.keys():
                raise CheckpointError(f"{file}: {min(twice)} is in another file of this folder too")
            tensors |= stored
        try:
            files = {name: read_text(folder / name) for name in TEXTS if (folder / name).is_file()}
        except (OSError, DocumentError) as error:
            raise CheckpointError(f"{folder}: {error}") from error
        if CONFIG in files:
            _require_object(folder / CONFIG, files[CONFIG])
        return {"model": tensors, "files": files}

    def files(self, path: Path) -> list[Path]:
        """Return the files of tensors; those that are archives have checksums."""
        return list(_files(path))

    def detect(self, path: Path) -> bool:
        """True if ``path`` is a folder of this format, or one of its files of tensors."""
        names = (SAFE, BIN, f"{SAFE}.index.json", f"{BIN}.index.json")
        return any((path / name).is_file() for name in names) or path.name in names


def _files(path: Path) -> dict[Path, set[str]]:
    if path.is_file() and path.suffix != ".json":
        return {path: set()}
    folder = path if path.is_dir() else path.parent
    for name in (SAFE, BIN):
        if (folder / name).is_file():
            return {folder / name: set()}
        if (folder / f"{name}.index.json").is_file():
            return _indexed(folder / f"{name}.index.json")
    raise CheckpointError(f"{folder}: holds no {SAFE}, nor {BIN}")


def _pickled(file: Path) -> dict[str, Any]:
    tree = torch_save.read_tree(file)
    if not isinstance(tree, dict):
        raise CheckpointError(f"{file}: expected a dict of tensors, found {type(tree).__name__}")
    return tree


def _require_object(path: Path, text: str) -> None:
    try:
        content = parse_json(text)
    except DocumentError as error:
        raise CheckpointError(f"{path}: is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(content).__name__}")


def _indexed(index: Path) -> dict[Path, set[str]]:
    tensors_of: dict[str, set[str]] = {}
    try:
        for tensor, name in read_json(index)["weight_map"].items():
            tensors_of.setdefault(name, set()).add(tensor)
        files = {index.parent / name: tensors_of[name] for name in sorted(tensors_of)}
        if outside := [name for name in tensors_of if Path(name).name != name]:
            raise CheckpointError(f"{index}: refused, since it names a file outside its folder: {outside[0]}")
        if missing := [file.name for file in files if not file.is_file()]:
            raise CheckpointError(f"{index.parent}: {', '.join(missing)} missing, which {index.name} names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: damaged ({error!r})") from error
    return files


def _parts(tensors: Mapping[str, Lazy], max_bytes: float) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if part and size + tensor.nbytes > max_bytes:
            yield part
            part, size = [], 0
        part.append(name)
        size += tensor.nbytes
    yield part


def _part_name(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def _with_dtype(files: Mapping[str, str], tensors: Mapping[str, Tensor | Lazy]) -> dict[str, str]:
    """Return the texts with the dtype of the weights in ``config.json``, where from_pretrained looks for it."""
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.dtype.is_floating_point}
    if CONFIG not in files or len(dtypes) != 1:
        return dict(files)
    config = json.loads(files[CONFIG])
    for key in ("dtype", "torch_dtype"):  # the newer and the older name
        config.pop(key, None)
    config["dtype"] = str(dtypes.pop()).removeprefix("torch.")
    return {**files, CONFIG: json.dumps(config, indent=2, sort_keys=True) + "\n"}
