"""The format dcp: every bit comes back, on any number of ranks, and nothing that is read can run."""

from __future__ import annotations

import builtins
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.io.restricted_pickle import read_pickle
from recipe_core.checkpoint.lazy import Lazy, tree_map
from recipe_core.engine import protocol as engines
from recipe_core.engine.agreement import on_all_ranks
from recipe_core.engine.protocol import Engine
from recipe_core.errors import CheckpointError
from recipe_core.hooks.train import Train
from recipe_core.settings.fill import flat
from recipe_core.testing import spawn

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """All kinds of tensors, with values that a detour over another type would lose."""
    generator = torch.Generator().manual_seed(seed)
    found = {str(t): (torch.randn(5, 3, generator=generator) * 100).to(t) for t in DTYPES}
    found["scalar"] = torch.tensor(0.1 + seed)
    found["empty"] = torch.empty(0, 4)
    found["odd"] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    found["strided"] = torch.randn(6, 4, generator=generator).t()
    return found


def plain() -> dict[str, Any]:
    return {
        "none": None, "bool": True, "int": 2**80, "negative": -1, "float": 0.1, "text": "ä\n", "betas": (0.9, 0.95),
        "list": [1, [2, "x", None]], "no items": [], "no entries": {}, "dicts": [{"lr": 1e-3, "params": ["a", "b"]}],
    }  # fmt: skip


def same(one: Tensor, two: Tensor) -> bool:
    """True if all bits agree; NaNs and the sign of zero count."""
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, two)]
    return one.dtype == two.dtype and one.shape == two.shape and torch.equal(*as_bytes)


def saved(folder: Path, state: dict[str, Any]) -> Path:
    folder.mkdir()
    Dcp().save(folder, state)
    return folder


def test_every_bit_comes_back(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"model": tensors(), "list": [torch.ones(2), 3], "plain": plain()})
    blank = {name: torch.zeros_like(t) for name, t in tensors().items()}
    state = {"model": dict(blank), "list": [torch.zeros(2), 0], "plain": dict.fromkeys(plain(), 0)}
    state["plain"]["no entries"], state["plain"]["dicts"] = {}, [{"lr": 0, "params": []}]
    Dcp().load(path, state)
    assert all(state["model"][name] is t and same(t, tensors()[name]) for name, t in blank.items())
    assert state["list"][0].tolist() == [1, 1]
    assert state["list"][1] == 3
    assert state["plain"] == plain()
    assert type(state["plain"]["betas"]) is tuple
    assert type(state["plain"]["bool"]) is bool


def test_torch_itself_reads_it(tmp_path: Path) -> None:
    """A stock DCP reader, without any code of ours, finds the same."""
    path = saved(tmp_path / "x", {"model": tensors(), "step": 7})
    state = {"model": {name: torch.zeros_like(t) for name, t in tensors().items()}, "step": 0}
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.load(state, checkpoint_id=path)
    assert state["step"] == 7
    assert all(same(t, tensors()[name]) for name, t in state["model"].items())  # type: ignore[attr-defined]


def test_detect(tmp_path: Path) -> None:
    assert not Dcp().detect(tmp_path)
    assert Dcp().detect(saved(tmp_path / "x", {"a": 1}))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a": {"b": object()}}, r"a\.b: a builtins\.object cannot be saved"),
        ({"a": [1, {2}]}, r"a: a builtins\.set cannot be saved"),
        ({"a": (torch.ones(1),)}, r"a: a torch\.Tensor cannot be saved"),
        ({"a": {3: 1}}, r"a\.3: a checkpoint's keys are text, and this is a int"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, state: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        saved(tmp_path / "x", state)


def test_an_existing_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"a": 1})
    with pytest.raises(CheckpointError, match=r"x: cannot be written \(RuntimeError: Checkpoint already exists"):
        Dcp().save(path, {"a": 2})
    Dcp().load(path, state := {"a": 0})
    assert state == {"a": 1}


# What does not fit


def test_all_differences_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"m": {"weight": torch.ones(2, 3), "bias": torch.ones(3), "old": 1, "same": 1}})
    state = {"m": {"weight": torch.ones(3, 3), "bias": torch.ones(3).double(), "older": 1, "same": torch.ones(1)}}
    with pytest.raises(CheckpointError) as found:
        Dcp().load(path, state)
    assert str(found.value).splitlines() == [
        f"{path}: does not fit this run, 5 of 5 entries differ:",
        "  - m.older: not in the checkpoint; nearest there: m.old",
        "  - m.old: in the checkpoint, and not in this run; nearest there: m.older",
        "  - m.weight: found float32 [2, 3], expected float32 [3, 3]",
        "  - m.bias: found float32 [3], expected float64 [3]",
        "  - m.same: found a plain value, expected float32 [1]",
        "Continue with the settings that it was written with, or give another --out",
    ]


def test_ten_differences_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {f"a{i}": i for i in range(25)})
    with pytest.raises(CheckpointError, match="and 16 more") as found:
        Dcp().load(path, {"b": 0})
    assert "26 of 26 entries differ" in str(found.value)
    assert str(found.value).count("\n  - ") == 11


def test_nothing_is_changed_when_it_does_not_fit(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"a": torch.ones(2), "b": 1})
    state = {"a": torch.zeros(2)}
    with pytest.raises(CheckpointError, match="b: in the checkpoint, and not in this run"):
        Dcp().load(path, state)
    assert state["a"].tolist() == [0, 0]


# Damage


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"a": torch.arange(1000)})
    data, whole = path / "__0_0.distcp", (path / "__0_0.distcp").read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: .* bytes instead of at least .*; it is cut short"):
        Dcp().load(path, {"a": torch.zeros(1000, dtype=torch.int64)})
    data.write_bytes(bytes(len(whole)))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: damaged"):
        Dcp().load(path, {"a": torch.zeros(1000, dtype=torch.int64)})
    data.unlink()
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: missing"):
        Dcp().load(path, {"a": torch.zeros(1000, dtype=torch.int64)})


def test_damaged_metadata_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"a": torch.arange(10)})
    file, whole = path / ".metadata", (path / ".metadata").read_bytes()
    for content in (whole[:-5], b"", b"\x00" * 50, pickle.dumps([1])):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"\.metadata: damaged"):
            Dcp().load(path, {"a": torch.zeros(10)})
    file.unlink()
    with pytest.raises(CheckpointError, match=r"\.metadata: cannot be read \(No such file"):
        Dcp().load(path, {"a": torch.zeros(10)})


def rewrite(path: Path, change: Any) -> None:
    """Change the metadata of a checkpoint of ours."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def test_nested_lists_and_dicts_come_back_as_pytorch_nests_them(tmp_path: Path) -> None:
    one = torch.ones(1)
    state = {"a": [one, {"x": [one, 2], "1": {"y": one}}, {}, [[one]]], "b": {}, "c": {"0": 1, "d.e": [one]}}
    found = Dcp().open(saved(tmp_path / "x", state))

    def shown(tree: Any) -> Any:
        return tree_map(lambda leaf: leaf.read().tolist() if isinstance(leaf, Lazy) else leaf, tree)

    flattened, places = flatten_state_dict(state)
    expected = unflatten_state_dict(flattened, places)
    assert shown(found) == tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, Tensor) else leaf, expected)


@pytest.mark.parametrize("names", [{"a": 0, "b": ("a", "x")}, {"a": ("c", 0), "b": ("c", "x")}])
def test_entries_at_one_place_are_refused(tmp_path: Path, names: dict[str, Any]) -> None:
    path = saved(tmp_path / "x", {"a": 1, "b": 2})

    def move(metadata: Any) -> None:
        for name, place in names.items():
            if place:
                moved = ".".join(map(str, place))
                metadata.planner_data[moved] = place
                del metadata.planner_data[name]
                metadata.state_dict_metadata[moved] = metadata.state_dict_metadata.pop(name)
                index = next(index for index in metadata.storage_data if index.fqn == name)
                metadata.storage_data[type(index)(moved)] = metadata.storage_data.pop(index)

    rewrite(path, move)
    with pytest.raises(CheckpointError, match="damaged, it has"):
        Dcp().open(path)


def test_a_tensor_with_a_piece_missing_is_refused(tmp_path: Path) -> None:
    """DCP alone would leave the missing half as it was, and say nothing."""
    path = saved(tmp_path / "x", {"a": torch.ones(4, 2)})
    rewrite(path, lambda m: setattr(m.state_dict_metadata["a"], "size", torch.Size([8, 2])))
    with pytest.raises(CheckpointError, match="holds 8 of the 16 values of a"):
        Dcp().load(path, {"a": torch.zeros(8, 2)})


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"a": torch.ones(4, 2)})
    (path / "__0_0.distcp").rename(tmp_path / "elsewhere")

    def outside(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = "../elsewhere"

    rewrite(path, outside)
    with pytest.raises(CheckpointError, match=r"names a file outside its folder: \.\./elsewhere"):
        Dcp().load(path, {"a": torch.zeros(4, 2)})


# Malice


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.target,)


def test_the_payload_works(tmp_path: Path) -> None:
    """Else the tests below could not fail."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "hit")))
    assert (tmp_path / "hit").exists()


def test_a_malicious_metadata_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", {"a": torch.ones(2)})
    rewrite(path, lambda m: setattr(m, "planner_data", Payload(tmp_path / "hit")))
    with pytest.raises(CheckpointError, match=r"\.metadata: refused, since it names (posix|nt)\.mkdir"):
        Dcp().load(path, {"a": torch.zeros(2)})
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize("key", ["plain", "tensor"])
def test_a_malicious_item_is_refused(tmp_path: Path, key: str) -> None:
    """In a plain value, which stock DCP unpickles freely, and where a tensor should be."""
    state = {"plain": 1, "tensor": torch.ones(2)}
    path = saved(tmp_path / "x", dict(state))
    file = path / "__0_0.distcp"
    buffer = io.BytesIO()
    torch.save(Payload(tmp_path / "hit"), buffer)

    def point(metadata: Any) -> None:
        for index, info in metadata.storage_data.items():
            if index.fqn == key:
                info.offset, info.length = file.stat().st_size, len(buffer.getvalue())

    rewrite(path, point)
    with file.open("ab") as out:
        out.write(buffer.getvalue())
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: refused, since it names (posix|nt)\.mkdir"):
        Dcp().load(path, state)
    assert not (tmp_path / "hit").exists()
    if key == "plain":
        with pytest.warns(UserWarning, match="torch.distributed is disabled"):
            dcp.load(state, checkpoint_id=path)  # stock DCP runs it: this file is the real thing
        assert (tmp_path / "hit").exists()


@pytest.mark.parametrize("name", ["eval", "exec", "getattr", "__import__"])
def test_read_pickle_looks_up_nothing_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps({"a": getattr(builtins, name)}))
    with pytest.raises(CheckpointError, match=f"names builtins.{name}"):
        read_pickle(tmp_path / "x", lambda module, name: None)
    given = {("builtins", name): print}
    assert read_pickle(tmp_path / "x", lambda module, found: given.get((module, found))) == {"a": print}


def test_a_changed_byte_is_refused_when_a_run_loads(tmp_path: Path) -> None:
    """PyTorch's reader returns what it finds: a run continued from a foreign checkpoint with other weights."""
    path = saved(tmp_path / "x", {"w": torch.arange(1000.0), "plain": "a word"})
    file = path / "__0_0.distcp"
    for part in (torch.arange(500.0, 1000.0).numpy().tobytes(), b"a word"):
        data = bytearray(file.read_bytes())
        at = data.find(part)
        data[at] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"__0_0\.distcp: damaged, .* \(its check sum differs\)"):
            Dcp().load(path, {"w": torch.zeros(1000), "plain": ""})
        data[at] ^= 1
        file.write_bytes(data)
    state = {"w": torch.zeros(1000), "plain": ""}
    Dcp().load(path, state)
    assert state["plain"] == "a word"
    assert same(state["w"], torch.arange(1000.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([(0, 2), (1, 2)], "two pieces of w lie over each other"),
        ([(0, 2), (3, 2)], "a piece of w reaches beyond its end"),
    ],
)
def test_pieces_that_do_not_make_a_tensor(tmp_path: Path, chunks: list[tuple[int, int]], text: str) -> None:
    path = saved(tmp_path / "x", {"w": torch.zeros(4, 3)})
    metadata = pickle.loads((path / ".metadata").read_bytes())
    pieces = [ChunkStorageMetadata(torch.Size([begin, 0]), torch.Size([length, 3])) for begin, length in chunks]
    metadata.state_dict_metadata["w"].chunks = pieces
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=text):
        Dcp().open(path)


def test_metadata_that_asks_for_more_memory_than_there_is(tmp_path: Path) -> None:
    """One changed byte in the number of an entry; the C unpickler makes room for all entries before it."""
    path = saved(tmp_path / "x", {"w": torch.zeros(4, 3)}) / ".metadata"
    data = b"\x80\x02]r\x00\x00\x00\x80."
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"\.metadata: damaged, .* entry 2,147,483,648 in a pickle of 9 bytes"):
        Dcp().open(path.parent)


def read_all(path: Path) -> dict[str, Any]:
    """Every tensor and plain value of a checkpoint by name."""
    return {name: leaf.read() if isinstance(leaf, Lazy) else leaf for name, leaf in flat(Dcp().open(path))}


def test_a_changed_byte_of_the_metadata(tmp_path: Path) -> None:
    """It has no check sum; what it says agrees with itself and with the files, or is refused. No traceback."""
    state = {"model": tensors(), "optimizer": {"state": {"a": {"m": torch.ones(3), "v": torch.zeros(3)}}}, "step": 7}
    path = saved(tmp_path / "x", state)
    clean = read_all(path)
    data = (path / ".metadata").read_bytes()
    refused = 0
    for at in range(0, len(data), 3):
        (path / ".metadata").write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            found = read_all(path)
        except CheckpointError:
            refused += 1
            continue
        # Else a name differs, which no model has.
        for name in found.keys() & clean.keys():
            one, two = found[name], clean[name]
            assert same(one, two) if isinstance(two, Tensor) else one == two, (at, name)
    assert refused > len(data) // 6


# Several ranks


def distributed(engine: Engine, *, zero: bool) -> dict[str, Any]:
    """Replicated tensors, shards of even and uneven size (one rank has none of ``narrow``), and plain values."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"even": (8, 6), "uneven": (5, 3), "narrow": (1, 4), "copied": (3,)}
    whole = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    state = {"replicated": tensors(), "sharded": whole, "step": 0 if zero else 9}
    if zero:
        for tensor in [*state["replicated"].values(), *whole.values()]:  # type: ignore[attr-defined]
            tensor.zero_()
    mesh = engine.mesh({"tp": engine.world_size})
    if mesh is not None:
        places = {"even": Shard(1), "uneven": Shard(0), "narrow": Shard(0), "copied": Replicate()}
        state["sharded"] = {name: distribute_tensor(t, mesh, [places[name]]) for name, t in whole.items()}
    return state


def facts(state: dict[str, Any]) -> dict[str, Any]:
    """Every bit of a state, gathered from all ranks."""
    found = {"step": state["step"]}
    for name, tensor in {**state["replicated"], **state["sharded"]}.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found[name] = (str(full.dtype), tuple(full.shape), full.reshape(-1).view(torch.uint8).numpy().tobytes().hex())
    return found


def save_and_load(engine: Engine, target: Path, sources: list[Path]) -> tuple[list[str], list[dict[str, Any]]]:
    """Save a state to ``target``; what this rank finds there and in ``sources``."""
    Dcp().save(target, distributed(engine, zero=False))
    engine.barrier()
    found = []
    for source in [target, *sources]:
        state = distributed(engine, zero=True)
        Dcp().load(source, state)
        found.append(facts(state))
    return sorted(p.name for p in target.iterdir()), found


def rank_saves_and_loads(target: Path, sources: list[Path]) -> tuple[list[str], list[dict[str, Any]]]:
    with engines.start(Train(device="cpu")) as engine:
        return save_and_load(engine, target, sources)


def test_any_number_of_ranks_reads_it(tmp_path: Path) -> None:
    """Saved on 1 and on 2 ranks, loaded on 1 and on 2: the same bits in all four."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with engines.start(Train(device="cpu")) as engine:
        expected = facts(distributed(engine, zero=False))
        _, found = save_and_load(engine, one, [])
        assert found == [expected]
        for files, here in spawn(rank_saves_and_loads, 2, two, [one]):
            assert files == [".metadata", "__0_0.distcp", "__1_0.distcp"]
            assert here == [expected, expected]
        state = distributed(engine, zero=True)
        Dcp().load(two, state)
        assert facts(state) == expected


def failures(engine: Engine, path: Path) -> list[str]:
    """The message on this rank for each of several failures on one rank alone."""
    texts = []
    odd = {"a": torch.ones(2), "b": object() if engine.rank == 1 else 1}
    for action in (
        lambda: Dcp().save(path / "new", odd),
        lambda: on_all_ranks(engine, lambda: Dcp().load(path / "old", {"a": torch.ones(2 + engine.rank)}), path),
        lambda: Dcp().load(path / "nothing", {"a": torch.ones(2)}),
    ):
        with pytest.raises(CheckpointError) as found:
            action()
        texts.append(str(found.value))
    return texts


def rank_fails(path: Path) -> list[str]:
    with engines.start(Train(device="cpu", timeout=300)) as engine:
        return failures(engine, path)


def test_a_failure_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    saved(tmp_path / "old", {"a": torch.ones(2)})
    (tmp_path / "new").mkdir()
    one, two = spawn(rank_fails, 2, tmp_path)
    assert one == two
    assert "b: a builtins.object cannot be saved" in one[0]
    assert "a: found float32 [2], expected float32 [3]" in one[1]
    assert "nothing/.metadata: cannot be read" in one[2]
