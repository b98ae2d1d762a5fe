from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

class Pieces:
    def __init__(self, fallback: Callable[[list[str]], list[list[int]]]) -> None: ...
    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
