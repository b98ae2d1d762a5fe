"""Samples of ``gpt_indexed`` that know their documents: rows cut from the stream, and packed rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recipe_core import Batch, DataError, Train
from recipe_core.cli.main import main
from recipe_core.layouts.parallel import Run
from recipe_megatron_gpt.data.arrays import cached as arrays
from recipe_megatron_gpt.data.arrays import indices
from recipe_megatron_gpt.data.arrays.indices import index_facts
from recipe_megatron_gpt.data.arrays.lengths import attended_pairs
from recipe_megatron_gpt.data.facts import facts
from recipe_megatron_gpt.data.identity import identity
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.settings import GptIndexed

SIZES = [int(size) for size in np.random.default_rng(0).integers(0, 70, 200)]
"""Some documents are empty, some have one token, and many are longer than a row."""
SEQUENCE = 32
PAIRS = {
    (int(start) + i, int(start) + i + 1)
    for start, size in zip(np.cumsum([0, *SIZES[:-1]]), SIZES, strict=True)
    for i in range(size - 1)
}
"""Each token with the next one of its document; a token's id is its place in the file."""


def settings(*files: str, **changes: Any) -> GptIndexed:
    given = {"files": files, "sequence": SEQUENCE, "split": (1,), "document_mask": True, "vocabulary": 300, **changes}
    return GptIndexed(**given)


def predictions(batch: Batch) -> list[tuple[int, int]]:
    """Tokens that predict, with their labels."""
    kept = batch["loss_mask"]
    return list(zip(batch["tokens"][kept].tolist(), batch["labels"][kept].tolist(), strict=True))


def document_of(ids: Tensor) -> Tensor:
    """The documents that the tokens ``ids`` are of."""
    return torch.from_numpy(np.searchsorted(np.cumsum(SIZES), ids.numpy(), side="right"))


@pytest.mark.parametrize("order", ["fast", "megatron"])
def test_cut_rows_are_those_without_a_mask(
    order: str, run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    prefix, run = write_tokens(SIZES), run_of(steps=10, global_batch=100)
    plain = build(settings(prefix, order=order, document_mask=False), run).read("train", 0, 1000)
    batch = build(settings(prefix, order=order), run).read("train", 0, 1000)
    assert plain.keys() == {"tokens", "labels"}
    assert all(torch.equal(batch[name], plain[name]) for name in plain)
    assert {name: tensor.dtype for name, tensor in batch.items()} == {
        "tokens": torch.int64, "labels": torch.int64, "document_ids": torch.int64, "loss_mask": torch.bool,
    }  # fmt: skip
    # A document may follow itself where one epoch ends and the next begins: its first token then follows its last.
    rising = batch["tokens"][:, 1:] == batch["tokens"][:, :-1] + 1
    same = (document_of(batch["tokens"])[:, 1:] == document_of(batch["tokens"])[:, :-1]) & rising
    assert torch.equal(batch["document_ids"].diff(dim=1) == 0, same)
    assert set(batch["document_ids"].diff(dim=1).unique().tolist()) == {0, 1}
    assert (batch["document_ids"][:, 0] == 1).all()
    pairs = list(zip(batch["tokens"].flatten().tolist(), batch["labels"].flatten().tolist(), strict=True))
    assert [pair in PAIRS for pair in pairs] == batch["loss_mask"].flatten().tolist()


def test_packed_rows_predict_each_token_once(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    samples = build(settings(write_tokens(SIZES), rows="packed"), run_of())
    rows = samples._order("train").samples  # type: ignore[attr-defined]
    first, second = (samples.read("train", start, rows) for start in (0, rows))
    for epoch in (first, second):
        assert sorted(predictions(epoch)) == sorted(PAIRS)
        assert torch.equal(epoch["loss_mask"], epoch["document_ids"] != 0)
        assert not epoch["tokens"][~epoch["loss_mask"]].any()
    assert not torch.equal(first["tokens"], second["tokens"])
    fewest = -(-len(PAIRS) // SEQUENCE)
    assert fewest <= rows <= 1.02 * fewest
    ids = first["document_ids"]
    assert ((ids.diff(dim=1) >= 0) | (ids[:, 1:] == 0)).all()  # padding ends a row
    starts = document_of(first["tokens"])
    inside = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] != 0)
    assert torch.equal(starts[:, 1:][inside], starts[:, :-1][inside])


def test_a_packed_sample_depends_on_seed_and_number_alone(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_tokens(SIZES)
    config = settings(prefix, rows="packed")
    whole = build(config, run_of()).read("train", 0, 1000)
    monkeypatch.setattr(arrays, "SMALL", 0)  # the same from arrays in the cache
    again = build(config, run_of())
    for start, count in ((900, 100), (0, 1), (433, 2)):
        part = again.read("train", start, count)
        assert all(torch.equal(part[name], whole[name][start : start + count]) for name in whole)
    other = build(config, run_of(seed=5)).read("train", 0, 1000)
    assert not torch.equal(other["tokens"], whole["tokens"])
    shuffles = list((run_of().cache / "gpt_indexed").glob("*-shuffle-*.npy"))
    assert 0 < len(shuffles) < 10  # those of past epochs are removed


def test_documents_of_a_row_and_of_several(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    sizes = [SEQUENCE + 1, 3 * SEQUENCE + 1, SEQUENCE + 2]
    batch = build(settings(write_tokens(sizes), rows="packed"), run_of()).read("train", 0, 6)
    assert sorted(batch["loss_mask"].sum(1).tolist()) == [1, *[SEQUENCE] * 5]
    assert (batch["document_ids"] <= 1).all()


def test_a_blend(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    files = [f"{weight}:{write_tokens(SIZES, name, first=first)}" for weight, name, first in
             ((1, "a", 0), (3, "b", 20000))]  # fmt: skip
    for rows in ("cut", "packed"):
        batch = build(settings(*files, rows=rows), run_of()).read("train", 0, 400)
        assert batch["document_ids"].shape == (400, SEQUENCE)
        assert int(((batch["tokens"] >= 20000).any(1)).sum()) == 300
        kept = batch["loss_mask"]
        assert torch.equal(batch["labels"][kept], batch["tokens"][kept] + 1)


def test_sequences_of_a_split_without_tokens(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    with pytest.raises(DataError, match="the split 'train' gets 1 of its 2 sequences and no token"):
        build(settings(write_tokens([0, 9]), rows="packed", split=(1, 1)), run_of())


def test_documents_that_predict_nothing(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    with pytest.raises(DataError, match=r"tokens\.bin: no document of the split 'train' has two tokens"):
        build(settings(write_tokens([1] * 50), rows="packed"), run_of())
    batch = build(settings(write_tokens([1] * 50)), run_of()).read("train", 0, 1)
    assert not batch["loss_mask"].any()


def test_an_unknown_id_in_a_packed_row_is_named(run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    samples = build(settings(write_tokens([10, 0, 10, 10]), rows="packed"), run_of(vocabulary=25))
    with pytest.raises(
        DataError, match=r"document 3 \(sequence 3\) has the token id 25 at position 5, expected ids fr"
    ):
        samples.read("train", 0, 1)


def test_a_file_that_is_cut_while_packed_rows_are_read(
    run_of: Callable[..., Run], write_tokens: Callable[..., str]
) -> None:
    prefix = write_tokens([100] * 100)
    samples = build(settings(prefix, rows="packed"), run_of())
    os.truncate(f"{prefix}.bin", 4096)
    with pytest.raises(DataError, match="was cut while the run read it"):
        samples.read("train", 0, 64)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.rows=packed"], "data.rows: packed rows keep their documents apart; set document_mask=true"),
        (
            ["data.rows=packed", "data.document_mask=true", "data.order=megatron"],
            "data.rows: order=megatron cuts rows as megatron-core does; take rows=cut, or order=fast",
        ),
    ],
)
def test_settings_that_do_not_fit(words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "megatron_gpt:tiny", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_the_identity_has_mask_and_rows(write_tokens: Callable[..., str]) -> None:
    prefix = write_tokens(SIZES)
    assert dict(identity(settings(prefix, rows="packed")).order)["rows"] == "packed"
    assert dict(identity(settings(prefix, document_mask=False)).order)["document_mask"] is False


@pytest.mark.parametrize("rows", ["cut", "packed"])
def test_facts_estimate_the_pairs(rows: str, run_of: Callable[..., Run], write_tokens: Callable[..., str]) -> None:
    config = settings(write_tokens(SIZES), rows=rows)
    ids = build(config, run_of()).read("train", 0, 2000)["document_ids"]
    same = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] != 0)
    found = facts(config)
    assert found.document_mask
    assert found.attended_pairs == pytest.approx(same.float().mean().item(), rel=0.05)
    assert (found.train_samples is None) == (rows == "packed")
    assert facts(settings(*config.files, document_mask=False)).attended_pairs == 1


def test_pairs_of_a_large_file_are_estimated_from_some_sizes(write_tokens: Callable[..., str]) -> None:
    sizes = np.random.default_rng(1).integers(1, 5, 12_500)
    prefix = write_tokens(sizes)
    expected = attended_pairs(sizes.tolist(), SEQUENCE, packed=False)
    assert facts(settings(prefix)).attended_pairs == pytest.approx(expected, rel=0.02)
    assert attended_pairs([10**9], SEQUENCE, packed=False) == pytest.approx(1)


def test_indices_of_packed_rows(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (arrays, indices):
        monkeypatch.setattr(module, "SMALL", 0)
    config, train = settings(write_tokens(SIZES), rows="packed"), Train(steps=10, global_batch=4)
    run = run_of(steps=10, global_batch=4)
    monkeypatch.setattr(indices, "home", lambda: run.cache)
    before = index_facts(config, train)
    build(config, run).read("train", 0, 4)
    written = sum(path.stat().st_size for path in (run.cache / "gpt_indexed").glob("*.npy"))
    assert before.disk == pytest.approx(written - _table(config), rel=0.4)
    assert before.memory > 0
    assert index_facts(config, train).disk == 0


def _table(config: GptIndexed) -> int:
    """Bytes of the checked sizes and starts, which are no index of rows."""
    return 12 * IndexedFile.open(Path(config.files[0])).sizes.size


def test_a_run_on_other_rows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    words = ["run", "megatron_gpt:tiny", "train.steps=2", "train.eval_every=0", "data.document_mask=true"]
    assert main([*words, "train.stop_after=1", "--out", str(first)]) == 0
    assert main([*words, "data.rows=packed", "--out", str(first)]) == 2
    assert "data.rows was 'cut' and is 'packed'" in capsys.readouterr().err
    assert main([*words, "data.rows=packed", f"train.resume={first}", "--out", str(other)]) == 2
    assert "data.rows: cut was recorded, now packed" in capsys.readouterr().err
