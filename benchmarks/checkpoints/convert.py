"""A 2-GB checkpoint of a GPT from one format into another: time and peak memory of the whole command.

Each case is ``recipe convert`` as a command of its own: with starting Python and importing PyTorch, reading the source,
writing the target with fsync, its SHA-256, and reading everything back to compare it with the source bit by bit. The
peak is the kernel's (``ru_maxrss`` of the process).

The peer is PyTorch's own ``dcp_to_torch_save``, which turns a checkpoint of torch.distributed.checkpoint into one file,
in a process that imports PyTorch alone. It checks nothing and syncs nothing. A second peer is ``cp`` with ``sync``, and
``sha256sum`` of the copy, which is less than a conversion does; for ``recipe verify`` it is ``sha256sum`` alone. The
floor of memory is a process that has imported what ``recipe convert`` needs, and the largest tensor; that of time is a
copy of the files with fsync. Processor seconds stand beside those of the clock, for other work on the machine does not
count into them.

    PYTHONPATH=benchmarks python benchmarks/checkpoints/convert.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import common

MODEL = {"layers": 36, "hidden": 1024, "heads": 16, "positions": 1024, "vocabulary": 50304}
"""506 million parameters: 2.0 GB in fp32, of which the embedding is 206 MB."""
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dcp to hf": ("dcp", "hf", ()),
    "dcp to megatron, tp 2, pp 2": ("dcp", "megatron", ("tp=2", "pp=2")),
    "megatron, tp 2, pp 2, to dcp": ("megatron", "back", ()),
    "dcp to nxd, tp 2": ("dcp", "nxd", ("tp=2",)),
}
PEER = "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save as f; import sys; f(*sys.argv[1:])"
IMPORTS = "import " + ", ".join(
    [
        "recipe_core.checkpoint.convert.convert",
        "recipe_core.checkpoint.formats.dcp",
        "recipe_core.checkpoint.ranks.join",
        "recipe_megatron_gpt.model.gpt",
    ]
)


def make(folder: Path, model: dict[str, Any]) -> None:
    """Write the checkpoint, random values, one tensor in memory at a time."""
    import torch
    import yaml

    from recipe_core.checkpoint.formats.dcp import Dcp
    from recipe_core.checkpoint.lazy import Lazy
    from recipe_megatron_gpt.model.gpt import build
    from recipe_megatron_gpt.settings import Gpt

    with torch.device("meta"):
        module, _ = build(Gpt(**model))
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    folder.mkdir()
    values = {name: Lazy(shape, torch.float32, partial(torch.randn, shape)) for name, shape in shapes.items()}
    Dcp().save(folder, {"model": values, "progress": {"step": 1000, "consumed_samples": 64000}})
    (folder / "job.yaml").write_text(yaml.safe_dump({"model": {"use": "gpt", **model}}), encoding="utf-8")


def measured(*command: str, program: str = sys.executable) -> dict[str, float]:
    """Seconds, processor seconds and peak megabytes of a command.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    process = subprocess.Popen([program, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
    return {
        "seconds": time.perf_counter() - began,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
    }


def copied(source: Path, target: Path) -> float:
    """Seconds of a copy of the files, on the disk at the end."""
    began = time.perf_counter()
    shutil.copytree(source, target)
    for file in target.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
    return time.perf_counter() - began


def main() -> None:
    """Run all cases and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=MODEL["layers"], help="fewer for a trial, which is not stored")
    parser.add_argument("--folder", type=Path, help="where 9 GB are free (default: the temporary folder)")
    parser.add_argument("--make", type=Path, help="only write the checkpoint")
    options = parser.parse_args()
    model = {**MODEL, "layers": options.layers}
    if options.make:
        make(options.make, model)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        # In another process: the kernel counts what a parent has in memory as its children's peak.
        measured(__file__, "--make", str(folder / "dcp"), "--layers", str(options.layers))
        size = sum(file.stat().st_size for file in (folder / "dcp").iterdir()) / 1e6
        found: dict[str, Any] = {"imports alone": measured("-c", IMPORTS)}
        found["dcp_to_torch_save"] = measured("-c", PEER, str(folder / "dcp"), str(folder / "peer.pt"))
        (folder / "peer.pt").unlink()
        both = f"cp -r {folder}/dcp {folder}/copy && sync {folder}/copy/* && sha256sum {folder}/copy/*"
        found["cp, sync and sha256sum"] = measured("-c", both, program="sh")
        shutil.rmtree(folder / "copy")
        found["sha256sum"] = measured("-c", f"sha256sum {folder}/dcp/*", program="sh")
        found["verify"] = measured("-m", "recipe_core.cli", "verify", str(folder / "dcp"))
        floor = copied(folder / "dcp", folder / "copy")
        shutil.rmtree(folder / "copy")
        for case, (source, target, words) in CASES.items():
            to = "dcp" if target == "back" else target
            paths = (str(folder / source), str(folder / target))
            found[case] = measured("-m", "recipe_core.cli", "convert", *paths, "--to", to, *words)
            if source != "dcp":
                shutil.rmtree(folder / source)
            if target in ("hf", "nxd"):
                shutil.rmtree(folder / target)
            print(f"{case}: {found[case]['seconds']:.1f} s, {found[case]['peak_mb']:.0f} MB", flush=True)
    largest = model["vocabulary"] * model["hidden"] * 4 / 1e6
    results = {
        "processor": common.processor(), "versions": common.versions("torch"), "model": model,
        "checkpoint_mb": size, "largest_tensor_mb": largest, "copy_seconds": floor, "cases": found,
    }  # fmt: skip
    if model == MODEL:
        common.write("convert", results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
