"""Files read and written tensor by tensor: every bit comes back, torch and safetensors agree, damage shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.formats.single import Single
from recipe_core.checkpoint.io.archive import damage, has_checksums
from recipe_core.checkpoint.io.safetensors import read_tensors, write_tensors
from recipe_core.checkpoint.io.torch_save import read_tree, write_tree
from recipe_core.checkpoint.lazy import Lazy, fill, lazy, same_bits, tree_map
from recipe_core.engine import protocol as engines
from recipe_core.errors import CheckpointError
from recipe_core.hooks.train import Train
from recipe_core.settings.fill import flat
from recipe_core.testing import spawn

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {str(t): (torch.randn(5, 3, generator=generator) * 100).to(t) for t in DTYPES}
    whole = torch.randn(40, generator=generator)
    return found | {
        "scalar": torch.tensor(0.1), "empty": torch.empty(0, 4), "strided": torch.randn(6, 4, generator=generator).t(),
        "odd": torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]), "first": whole[:10], "second": whole[10:],
    }  # fmt: skip


def tree() -> dict[Any, Any]:
    """Tensors, one of them twice, among plain values."""
    found = tensors()
    plain = {0: [1, (2.5, None)], "text": "ä", "none": {}, "shape": torch.Size([2, 3])}
    return {"model": found, "again": found["scalar"], **plain}


def values(state: Any) -> Any:
    """Every Lazy read."""
    return tree_map(lambda leaf: leaf.read() if isinstance(leaf, Lazy) else leaf, state)


def same(one: Any, two: Any) -> bool:
    """True if two trees agree to the last bit."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(value, two[key]) for key, value in one.items())
    if isinstance(one, Tensor):
        return same_bits(one, two)
    return bool(one == two)


# torch.save


def test_what_torch_wrote_is_read(tmp_path: Path) -> None:
    torch.save(tree(), tmp_path / "x.pt")
    found = read_tree(tmp_path / "x.pt")
    assert {type(leaf) for _, leaf in flat(found["model"])} == {Lazy}
    assert same(values(found), tree())


def test_parameters_are_read_as_tensors(tmp_path: Path) -> None:
    torch.save({"w": torch.nn.Parameter(torch.ones(3))}, tmp_path / "x.pt")
    assert same(values(read_tree(tmp_path / "x.pt")), {"w": torch.ones(3)})


def test_files_from_before_the_archives_are_read(tmp_path: Path) -> None:
    torch.save(tree(), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    assert same(values(read_tree(tmp_path / "x.pt")), tree())


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_what_is_written(tmp_path: Path, mmap: bool) -> None:
    write_tree(tmp_path / "x.pt", tree())
    found = torch.load(tmp_path / "x.pt", weights_only=True, mmap=mmap)
    assert same(found, tree())
    assert found["again"].data_ptr() == found["model"]["scalar"].data_ptr()
    assert damage(tmp_path / "x.pt") == []
    assert same(values(read_tree(tmp_path / "x.pt")), tree())


def test_a_lazy_tree_is_copied_without_a_change(tmp_path: Path) -> None:
    torch.save(tree(), tmp_path / "x.pt")
    write_tree(tmp_path / "y.pt", read_tree(tmp_path / "x.pt"))
    assert same(torch.load(tmp_path / "y.pt", weights_only=True), tree())


def test_an_archive_packed_anew_is_not_misread(tmp_path: Path) -> None:
    """PyTorch computes where storages are; in a file that another program packed, they are elsewhere."""
    torch.save({"a": torch.ones(3), "b": torch.arange(5)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as old, zipfile.ZipFile(tmp_path / "y.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert same(values(read_tree(tmp_path / "y.pt")), {"a": torch.ones(3), "b": torch.arange(5)})


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.command = f"touch {trace}"

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("archive", [True, False])
def test_a_forbidden_global_is_named_and_not_run(tmp_path: Path, archive: bool) -> None:
    state = {"w": torch.ones(2), "x": Evil(tmp_path / "trace")}
    torch.save(state, tmp_path / "x.pt", _use_new_zipfile_serialization=archive)
    with pytest.raises(CheckpointError, match=r"refused, since it names (posix|nt)\.system.*Nothing of it was run"):
        read_tree(tmp_path / "x.pt")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_cut_short(tmp_path: Path, share: float) -> None:
    torch.save(tree(), tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "x.pt").write_bytes(data[: int(share * len(data))])
    with pytest.raises(CheckpointError, match=r"x\.pt: damaged, or no file of weights"):
        read_tree(tmp_path / "x.pt")


def test_a_flipped_bit_shows_in_the_check_sums(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(1000.0)}, tmp_path / "x.pt")
    data = bytearray((tmp_path / "x.pt").read_bytes())
    data[data.find(torch.tensor([500.0]).numpy().tobytes())] ^= 1
    (tmp_path / "x.pt").write_bytes(data)
    assert "does not hold the bytes that were written" in damage(tmp_path / "x.pt")[0]


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_part_is_read_once_the_whole_has_the_check_sum_that_was_written(tmp_path: Path) -> None:
    """Rows in any order are those of the tensor; a change anywhere else in it is refused all the same."""
    path, whole = tmp_path / "x.pt", torch.arange(1_000_000.0).reshape(1000, 1000)
    torch.save({"w": whole, "v": torch.ones(3)}, path)
    for start, count in ((0, 1), (999, 1), (300, 400), (0, 1000), (5, 0)):
        first, again = read_tree(path)["w"], read_tree(path)["w"]
        assert torch.equal(first.part(start, count), whole[start : start + count])
        assert torch.equal(again.read(), whole)
        assert torch.equal(again.part(start, count), whole[start : start + count])
    flipped(path, path.read_bytes().find(whole[700].numpy().tobytes()))
    found = read_tree(path)
    assert torch.equal(found["v"].read(), torch.ones(3))
    for start in (0, 700, 999):
        with pytest.raises(
            CheckpointError, match=r"x\.pt: damaged, x/data/0 does not hold the bytes that were written"
        ):
            found["w"].part(start, 1)


def test_each_of_several_tensors_in_one_storage_is_checked(tmp_path: Path) -> None:
    whole = torch.arange(100.0)
    torch.save({"first": whole[:50], "second": whole[50:]}, tmp_path / "x.pt")
    flipped(tmp_path / "x.pt", (tmp_path / "x.pt").read_bytes().find(whole[90:].numpy().tobytes()))
    with pytest.raises(CheckpointError, match="its check sum differs"):
        read_tree(tmp_path / "x.pt")["first"].read()


def test_damage_in_the_middle_of_writing_is_an_error(tmp_path: Path) -> None:
    """PyTorch's writer aborted the process when it went without having been ended."""
    torch.save({"a": torch.ones(3), "b": torch.arange(1000.0)}, tmp_path / "x.pt")
    flipped(tmp_path / "x.pt", (tmp_path / "x.pt").read_bytes().find(torch.arange(500.0, 1000.0).numpy().tobytes()))
    with pytest.raises(CheckpointError, match="its check sum differs"):
        write_tree(tmp_path / "y.pt", read_tree(tmp_path / "x.pt"))


def test_archives_without_check_sums_are_read(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "x.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    torch.save({"w": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert same(values(read_tree(tmp_path / "x.pt")), {"w": torch.ones(3)})
    assert damage(tmp_path / "x.pt") == []
    assert not has_checksums(tmp_path / "x.pt")
    assert not has_checksums(tmp_path / "old.pt")


def test_an_archive_packed_anew_is_compared_too(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(1000.0)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as old, zipfile.ZipFile(tmp_path / "y.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    flipped(tmp_path / "y.pt", (tmp_path / "y.pt").read_bytes().find(torch.arange(500.0, 1000.0).numpy().tobytes()))
    with pytest.raises(CheckpointError, match=r"y\.pt: damaged, x/data/0 does not hold"):
        values(read_tree(tmp_path / "y.pt"))


def test_what_torch_wrote_for_another_rank_is_refused(tmp_path: Path) -> None:
    """torch.save gives an archive the name of its file."""
    names = [tmp_path / f"tp_rank_0{rank}_pp_rank_00.pt" for rank in (0, 1)]
    for path in names:
        torch.save({"w": torch.ones(3)}, path)
    names[0].replace(names[1])
    with pytest.raises(CheckpointError, match="it was written as tp_rank_00_pp_rank_00, so that files were exchanged"):
        read_tree(names[1])
    names[1].replace(tmp_path / "mine.pt")  # under a name without a rank it may be anything
    assert same(values(read_tree(tmp_path / "mine.pt")), {"w": torch.ones(3)})


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x\.pt: cannot be read \(No such file or directory\)"):
        read_tree(tmp_path / "x.pt")


# safetensors


def test_safetensors_come_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, {name: lazy(tensor) for name, tensor in tensors().items()})
    assert same(values(read_tensors(path)), tensors())


@pytest.mark.peer
def test_the_package_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file, save_file

    contiguous = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors().items()}
    write_tensors(tmp_path / "ours", {name: lazy(tensor) for name, tensor in tensors().items()})
    assert same(load_file(tmp_path / "ours"), contiguous)
    save_file(contiguous, tmp_path / "its", metadata={"format": "pt"})
    assert same(values(read_tensors(tmp_path / "its")), contiguous)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"{", "its header is not as it should be"),
        (b"[]", "its header is not as it should be"),
        (b"[" * 100_000, r"its header is not as it should be \(RecursionError"),
        (b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]}}', r"data from 0\.0 to 8\.0, which are no"),
        (b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', r"4 bytes for \[2\] values of type F32"),
        (b'{"w": {"dtype": "F1", "shape": [2], "data_offsets": [0, 4]}}', "values of type F1, which this version"),
        (b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', "bytes instead of 77; it is cut short"),
        (b'{"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "w": {}}', "a name occurs twice"),
        (b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', "w begins at byte 4, and what is before it"),
        (
            b'{"v": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, '
            b'"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
            "w begins at byte 4, and what is before it ends at 8",
        ),
    ],
)
def test_a_damaged_header(tmp_path: Path, header: bytes, text: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match=text):
        read_tensors(path)


def test_values_that_no_tensor_has(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"w": lazy(torch.ones(2))})
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes() + b"1234")
    with pytest.raises(CheckpointError, match="no tensor is in the rest; it is damaged"):
        read_tensors(tmp_path / "x")


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((10**9).to_bytes(8, "little") + json.dumps({}).encode())
    with pytest.raises(CheckpointError, match="damaged or no file of safetensors"):
        read_tensors(tmp_path / "x")


# Formats of a run, opened and written lazily


@pytest.mark.parametrize("form", [Dcp(), Single()])
def test_a_format_opens_and_saves_lazily(tmp_path: Path, form: Dcp | Single) -> None:
    state = {"model": tensors(), "progress": {"step": 3}, "optimizer": {"state": {"a.b": {"step": torch.tensor(2.0)}}}}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    form.save(tmp_path / "one", state)
    opened = form.open(tmp_path / "one")
    assert same(values(opened), state)
    form.save(tmp_path / "two", opened)
    blank = tree_map(lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, Tensor) else 0, state)
    form.load(tmp_path / "two", blank)
    assert same(blank, state)


MEMORY = """
import resource, sys
from pathlib import Path
import torch
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.formats.single import Single
from recipe_core.checkpoint.lazy import Lazy
source, target = ({"dcp": Dcp, "single": Single}[word]() for word in sys.argv[2:])
one, two = Path(sys.argv[1], "one"), Path(sys.argv[1], "two")
size = torch.Size([4 << 20])
made = lambda: torch.full(size, 1.5)
source.save(one, {"model": {f"w{i}": Lazy(size, torch.float32, made) for i in range(24)}})
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
target.save(two, source.open(one))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize(("source", "target"), [("dcp", "single"), ("single", "dcp")])
def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path, source: str, target: str) -> None:
    """24 tensors of 16 MiB, one at a time: well below the 384 MiB of all."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), source, target], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100


def rank(path: Path) -> tuple[bool, list[bool]]:
    """Gather a sharded tensor into a file; fill sharded ones from it."""
    with engines.start(Train(device="cpu", timeout=300)) as engine:
        mesh = engine.mesh({"dp": engine.world_size})
        assert mesh is not None
        whole = {"odd": torch.arange(35.0).reshape(7, 5), "short": torch.ones(1, 2)}
        shards = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()}
        Single().save(path, {"model": {**shards, "plain": torch.ones(2)}})
        engine.barrier()
        found = torch.load(path / "checkpoint.pt", weights_only=True)
        filled = []
        for name, tensor in whole.items():
            for dim in (0, 1):
                target = distribute_tensor(torch.zeros_like(tensor), mesh, [Shard(dim)])
                fill(target, lazy(found["model"][name]))
                gathered = target.full_tensor() if isinstance(target, DTensor) else target
                filled.append(same_bits(gathered, tensor))
        return same(found["model"], {**whole, "plain": torch.ones(2)}), filled


def test_sharded_tensors_are_gathered_and_filled(tmp_path: Path) -> None:
    for whole, filled in spawn(rank, 2, tmp_path):
        assert whole
        assert filled == [True] * 4
