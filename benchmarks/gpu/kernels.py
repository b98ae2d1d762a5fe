"""Where a device's time goes: the kernels of a trace by family.

    python benchmarks/gpu/kernels.py gpu-results/traces/*.json.gz

prints a row per trace of one step: milliseconds of each family, of all, and from the first kernel to the last.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Categories of a trace that say what the device did."""
FAMILIES = {
    "attention": r"sdpa|cudnn::fusion|fmha|flash",
    "products": r"nvjet|gemm|cutlass|splitK|cublas",
    "optimizer": r"multi_tensor|adam",
    "loss": r"softmax|nll|cross_entropy|argmax|gather_neg|exp_sub",
    "GELU": r"gelu|tanh",
    "norms, dropout": r"dropout|layer_norm|layernorm|gammabeta|bernoulli",
}
"""Patterns of kernels' names; the first family that fits counts, so a fused kernel is in one of them."""
REST = "casts, copies, sums"


def family(name: str) -> str:
    """The family of a kernel."""
    return next((key for key, pattern in FAMILIES.items() if re.search(pattern, name, re.IGNORECASE)), REST)


def families(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of the device in each family, from the events of a Chrome trace."""
    found: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ON_DEVICE:
            found[family(event["name"])] += event["dur"] / 1e6
    return dict(found.most_common())


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        found = families(events)
        work = [event for event in events if event.get("cat") in ON_DEVICE]
        span = max(e["ts"] + e["dur"] for e in work) / 1e6 - min(e["ts"] for e in work) / 1e6
        parts = {**found, "all": sum(found.values()), "span": span}
        print(path.name, *(f"{name} {1000 * seconds:.1f}" for name, seconds in parts.items()), sep="; ")


if __name__ == "__main__":
    main()
