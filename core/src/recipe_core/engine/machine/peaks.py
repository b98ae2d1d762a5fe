"""Peak FLOP/s of known devices, for model FLOP/s utilisation (MFU)."""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Dense TFLOP/s (data sheets often print twice as much, with structured sparsity); None: not published."""

    bf16: float | None
    tf32: float | None
    fp32: float | None


# Device name -> peak; the first pattern that matches counts, so special ones come before general ones. Figures with
# sparsity are halved. Products without figures that we could confirm are not listed.
_PEAKS = (
    # NVIDIA Blackwell data sheet, "Individual Blackwell GPU Specifications" (GB200 NVL72 and HGX B200).
    (r"GB200", Peak(2500, 1250, 80)),
    (r"B200", Peak(2250, 1100, 75)),
    # NVIDIA data sheets of H100 and H200 (SXM, PCIe, NVL) and GH200; the SXM figures to four digits are those of the
    # H100 Tensor Core GPU Architecture white paper. H20: NVIDIA's figures for that market, as the press gives them.
    (r"H200 NVL|H100 NVL", Peak(835.5, 417.5, 60)),
    (r"GH200", Peak(990, 494, 67)),
    (r"H100 PCIe", Peak(756, 378, 51)),
    (r"H200|H100", Peak(989.4, 494.7, 66.9)),
    (r"H20\b", Peak(148, 74, 44)),
    # NVIDIA A100 data sheet (SXM and PCIe alike; the A800 differs in its links alone), A40 and A10 data sheets.
    (r"A100|A800", Peak(312, 156, 19.5)),
    (r"A40\b", Peak(149.7, 74.8, 37.4)),
    (r"A10\b", Peak(125, 62.5, 31.2)),
    # NVIDIA L40S and L4 data sheets.
    (r"L40S", Peak(362, 183, 91.6)),
    (r"L4\b", Peak(121, 60, 30.3)),
    # NVIDIA V100 data sheet; its tensor cores know neither bf16 nor TF32.
    (r"V100S", Peak(None, None, 16.4)),
    (r"V100-PCIE", Peak(None, None, 14)),
    (r"V100", Peak(None, None, 15.7)),
    # AMD Instinct MI300X data sheet.
    (r"MI300X", Peak(1307.4, None, 163.4)),
    # Intel at Hot Chips 2024, "Gaudi Product Generations".
    (r"GAUDI3", Peak(1835, None, None)),
    (r"GAUDI2", Peak(432, None, None)),
)


def known_peak(name: str) -> Peak | None:
    """Peak of a device by the name that its driver reports."""
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)
