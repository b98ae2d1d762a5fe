"""Packing: how full the rows are and how long it takes, on the lengths of real samples of 512 tokens.

The lengths are those that ``recipe prepare bert_hdf5 sequence=512 max_predictions=80`` makes of the text; one million
more are drawn from their histogram. The baseline is best-fit decreasing with the same limit of sequences per row. (The
published method, Krell et al. 2021, solves a non-negative least-squares problem for 42 seconds.)

    PYTHONPATH=benchmarks python benchmarks/data/pack.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import h5py
import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.prepare.hdf5 import prepare
from recipe_bert_dp.settings import PrepareHdf5
from recipe_index import bert

CAPACITY, MILLION = 512, 1_000_000


def real_lengths(text: Path, vocabulary: Path) -> NDArray[np.int32]:
    """Return the number of tokens of each sample."""
    with tempfile.TemporaryDirectory() as folder:
        settings = PrepareHdf5(
            inputs=(str(text),), vocabulary=str(vocabulary), output=f"{folder}/out", sequence=CAPACITY,
            max_predictions=80, gzip=False, test_share=0,
        )  # fmt: skip
        prepare(settings)
        parts = []
        for path in sorted(Path(folder, "out", "training").iterdir()):
            with h5py.File(path) as file:
                parts.append(file["input_mask"][:].sum(axis=1, dtype=np.int32))
    return np.concatenate(parts)


def ours(lengths: NDArray[np.int32], most: int) -> tuple[int, float]:
    """Pack with ``bert.pack``, at most ``most`` sequences per row (0: no limit); return rows and seconds."""
    begin = time.perf_counter()
    order, rows = bert.pack(lengths, CAPACITY, most, 1)
    seconds = time.perf_counter() - begin
    assert np.array_equal(np.sort(order), np.arange(lengths.size))  # every sequence once
    assert np.add.reduceat(lengths[order], rows[:-1]).max() <= CAPACITY
    assert not most or np.diff(rows).max() <= most
    return rows.size - 1, seconds


def best_fit(lengths: NDArray[np.int32], most: int) -> tuple[int, float]:
    """Put each sequence, longest first, into the fullest row that has room for it; return rows and seconds."""
    begin = time.perf_counter()
    open_rows: list[list[int]] = [[] for _ in range(CAPACITY + 1)]
    rows = 0
    for length in np.sort(lengths)[::-1].tolist():
        room = next((room for room in range(length, CAPACITY) if open_rows[room]), None)
        held = open_rows[room].pop() if room is not None else 0
        if room is None:
            rows, room = rows + 1, CAPACITY
        if held + 1 < (most or CAPACITY) and room > length:
            open_rows[room - length].append(held + 1)
    return rows, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_text(parser)
    options = common.parsed(parser)
    real = real_lengths(options.text, options.vocabulary)
    million = np.random.default_rng(0).choice(real, MILLION).astype(np.int32)
    result: dict[str, Any] = {"capacity": CAPACITY, "sequences": real.size, "unpacked": fill(real, real.size)}
    print(f"unpacked: {result['unpacked']:.2%} of {real.size:,} rows are real tokens")
    for name, lengths in (("real", real), ("million", million)):
        for most in (3, 0):
            sides = {"recipe": ours(lengths, most), "best fit decreasing": best_fit(lengths, most)}
            for side, (rows, seconds) in sides.items():
                found = {"fill": fill(lengths, rows), "seconds": round(seconds, 3)}
                result[f"{name}, {most or 'any number'} a row, {side}"] = found
                print(
                    f"{name:8} {most or 'any':3} a row  {side:20} {found['fill']:.3%} {found['seconds']:8.2f} s",
                    flush=True,
                )
    common.write("pack", result)


def fill(lengths: NDArray[np.int32], rows: float) -> float:
    """Return the share of real tokens in ``rows`` rows."""
    return round(float(lengths.sum(dtype=np.int64)) / (rows * CAPACITY), 5)


if __name__ == "__main__":
    main()
