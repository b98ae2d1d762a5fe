"""Reading and writing Megatron's token files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recipe_core.errors import DataError, DiskError
from recipe_megatron_gpt.data import indexed
from recipe_megatron_gpt.data.indexed import IndexedFile, IndexedWriter, best_dtype

DOCUMENTS: list[list[list[int]]] = [[[5, 6, 7], [8]], [[]], [[65499, 0]], [], [[1, 2], [3], [4, 5, 6, 7]]]
"""Documents of several sequences, among them empty ones."""


def write(prefix: Path, dtype: str = "uint16", documents: list[list[list[int]]] = DOCUMENTS) -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add_document(document)
    return prefix


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_what_is_written_is_read(tmp_path: Path, dtype: str) -> None:
    file = IndexedFile.open(write(tmp_path / "a.b", dtype))
    sequences = [sequence for document in DOCUMENTS for sequence in document]
    assert [file.sequence(n).tolist() for n in range(len(file.sizes))] == sequences
    assert file.tokens.dtype == dtype
    assert file.documents.tolist() == [0, 2, 3, 4, 4, 7]
    assert [file.document_of(n) for n in range(7)] == [0, 0, 1, 2, 4, 4, 4]


def test_bytes_of_the_index(tmp_path: Path) -> None:
    write(tmp_path / "a", "int32", [[[1, 2], [3]], [[4]]])
    expected = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 3, 3)
    expected += struct.pack("<3i", 2, 1, 1) + struct.pack("<3q", 0, 8, 12) + struct.pack("<3q", 0, 2, 3)
    assert (tmp_path / "a.idx").read_bytes() == expected
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<4i", 1, 2, 3, 4)


def test_many_documents_at_once_are_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one", documents=[[[1, 2, 3]], [[4]], [[]], [[5, 6]]])
    with IndexedWriter(tmp_path / "many", np.uint16) as writer:
        writer.add_documents([1, 2, 3, 4], [3, 1])
        writer.add_documents(np.array([5, 6], dtype=np.uint16), np.array([0, 2]))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"many{ending}").read_bytes() == (tmp_path / f"one{ending}").read_bytes()


def test_nothing_appears_before_the_end_and_an_error_leaves_the_old_files(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupted() -> None:
        with IndexedWriter(prefix, "uint16") as writer:
            writer.add_document([np.arange(3_000_000) % 1000])
            assert {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")} == before
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_is_one_message_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="No space left"), IndexedWriter(tmp_path / "a", "uint16"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("dtype", "bad"), [("uint16", 65536), ("uint16", -1), ("int32", 1 << 31)])
def test_an_id_that_does_not_fit_is_refused_with_its_document(tmp_path: Path, dtype: str, bad: int) -> None:
    message = f"a.bin: document 1 has the token id {bad}, which {dtype} cannot hold"
    with pytest.raises(DataError, match=message):
        write(tmp_path / "a", dtype, [[[1, 2]], [[3], [4, bad]]])
    assert list(tmp_path.iterdir()) == []


def test_wrong_calls_of_the_writer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected uint16 or int32, got float32"):
        IndexedWriter(tmp_path / "a", np.float32)
    with IndexedWriter(tmp_path / "a", "int32") as writer:
        with pytest.raises(ValueError, match="one dimension of integers, got 1 of float64"):
            writer.add_document([[1.5]])
        with pytest.raises(ValueError, match="adding up to the 3 ids"):
            writer.add_documents([1, 2, 3], [1, 1])


def test_uint16_holds_every_vocabulary_that_megatron_puts_in_it() -> None:
    assert [best_dtype(v).name for v in (1, 65499, 65500, 65536)] == ["uint16", "uint16", "int32", "int32"]


def overwrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


BROKEN: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no idx": (lambda bin, idx: idx.unlink(), r"a\.idx: not found, though a\.bin is there"),
    "no bin": (lambda bin, idx: bin.unlink(), r"a\.bin: not found, though a\.idx is there"),
    "neither": (lambda bin, idx: list(map(Path.unlink, (bin, idx))), r"a\.idx: not found, and a\.bin neither"),
    "magic": (lambda bin, idx: overwrite(idx, 0, b"PK"), r"a\.idx: starts with b'PKIDIDX.*expected b'MMIDIDX"),
    "version": (lambda bin, idx: overwrite(idx, 9, b"\x02"), r"a\.idx: is of version 2, expected 1"),
    "float tokens": (lambda bin, idx: overwrite(idx, 17, b"\x07"), r"float32 \(code 7\), expected uint16 \(8\)"),
    "unknown type": (lambda bin, idx: overwrite(idx, 17, b"\x63"), r"unknown \(code 99\), expected uint16 \(8\)"),
    "empty idx": (lambda bin, idx: idx.write_bytes(b""), r"a\.idx: cut off after 0 bytes"),
    "short idx": (lambda bin, idx: idx.write_bytes(idx.read_bytes()[:-1]), r"a\.idx: cut off after 165 bytes"),
    "short header": (lambda bin, idx: idx.write_bytes(idx.read_bytes()[:20]), r"cut off after 20 bytes, its header"),
    "short bin": (lambda bin, idx: bin.write_bytes(bin.read_bytes()[:-1]), r"a\.bin: cut off after 25 bytes.*holds 26"),
    "empty bin": (lambda bin, idx: bin.write_bytes(b""), r"a\.bin: is empty"),
    "negative size": (lambda bin, idx: overwrite(idx, 34, b"\xff\xff\xff\xff"), r"a\.idx: is damaged: .*-1"),
    "odd pointer": (lambda bin, idx: overwrite(idx, 34 + 28 + 8, b"\x05"), r"a\.idx: is damaged: .*got 5"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_pair_of_files_is_named(tmp_path: Path, how: str) -> None:
    prefix = write(tmp_path / "a")
    assert (tmp_path / "a.idx").stat().st_size == 34 + 7 * 12 + 6 * 8
    damage, message = BROKEN[how]
    damage(tmp_path / "a.bin", tmp_path / "a.idx")
    with pytest.raises(DataError, match=message):
        IndexedFile.open(prefix)


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_the_same_bytes_as_megatron_core(tmp_path: Path, dtype: str) -> None:
    peer = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    write(tmp_path / "ours", dtype)
    builder = peer.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), getattr(np, dtype))
    for document in DOCUMENTS:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"ours{ending}").read_bytes() == (tmp_path / f"theirs{ending}").read_bytes()
    assert indexed.best_dtype(65500) == peer.DType.optimal_dtype(65500)
    assert indexed.best_dtype(65499) == peer.DType.optimal_dtype(65499)
