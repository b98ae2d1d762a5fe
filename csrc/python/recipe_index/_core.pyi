from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def parse_idx(data: NDArray[np.uint8]) -> tuple[int, NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]: ...
def document_order(
    documents: NDArray[np.int32], epochs: int, seed: int, separate_last_epoch: bool, megatron: bool
) -> NDArray[np.int32]: ...
def sample_index(
    sizes: NDArray[np.int32], order: NDArray[np.int32], sequence: int, samples: int
) -> NDArray[np.int32] | NDArray[np.int64]: ...
def shuffle_index(
    separate: int, total: int, seed: int, megatron: bool, drawn: Sequence[int] = ()
) -> NDArray[np.uint32] | NDArray[np.int64]: ...
def blending_index(weights: NDArray[np.float64], samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]: ...
def gather(
    tokens: NDArray[np.uint16] | NDArray[np.int32],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int32],
    order: NDArray[np.int32],
    samples_index: NDArray[np.int32] | NDArray[np.int64],
    which: NDArray[np.int64],
    sequence: int,
    limit: int,
) -> NDArray[np.int64]: ...
