"""Peak arithmetic of known devices, for FLOP/s as a share of what is possible (MFU)."""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Dense TFLOP/s (data sheets often print twice as much, with structured sparsity); None: not published."""

    bf16: float | None
    tf32: float | None
    fp32: float | None


# Device name -> peak; the first pattern found in the name counts, so the special ones come before the general.
# NVIDIA and AMD: the data sheets of the products (form factors differ). Intel: Gaudi 2 and 3 white papers.
_PEAKS = (
    (r"GB200", Peak(2500, 1250, 80)),
    (r"B200", Peak(2250, 1125, 75)),
    (r"H200 NVL|H100 NVL", Peak(835.5, 417.5, 60)),
    (r"GH200|H200", Peak(989.4, 494.7, 66.9)),
    (r"H100 PCIe", Peak(756, 378, 51)),
    (r"H100|H800", Peak(989.4, 494.7, 66.9)),
    (r"H20\b", Peak(148, 74, 44)),
    (r"A100|A800", Peak(312, 156, 19.5)),
    (r"A40\b", Peak(149.7, 74.8, 37.4)),
    (r"A10\b", Peak(125, 62.5, 31.2)),
    (r"L40S", Peak(362, 183, 91.6)),
    (r"L4\b", Peak(121, 60, 30.3)),
    (r"V100", Peak(None, None, 15.7)),
    (r"MI300X", Peak(1307.4, 653.7, 163.4)),
    (r"GAUDI3", Peak(1835, None, None)),
    (r"GAUDI2", Peak(432, None, None)),
)

# AWS: Trainium architecture pages; per chip, with the physical cores of a chip.
_TRAINIUM = {
    "trn1": (Peak(190, 190, 47.5), 2),
    "trn2": (Peak(667, 667, 181), 8),
    "trn3": (Peak(671, 671, 183), 8),
}


def known_peak(name: str) -> Peak | None:
    """Peak of the device that its driver calls ``name``."""
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)


def trainium_peak(instance: str, cores: int) -> Peak | None:
    """Peak of one logical NeuronCore, made of ``cores`` physical ones, on an EC2 instance type (``trn2.48xlarge``)."""
    found = _TRAINIUM.get(instance[:4])
    if found is None:
        return None
    chip, physical = found
    return Peak(*(None if value is None else value * cores / physical for value in chip))
