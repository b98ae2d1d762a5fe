"""The scripts of benchmarks/, and the comparison of their ratios with the stored ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox
from nox.command import CommandFailed

from checks.workspace import ROOT

FOLDER = ROOT / "benchmarks"


def measure(session: nox.Session, names: list[str]) -> None:
    """Run the benchmarks ``names``, or all; print falls of their ratios, and fail if one of them failed.

    Campaigns, which are folders with a __main__, are run by hand.
    """
    found = (path for path in sorted(FOLDER.rglob("[a-z]*.py")) if "common.write(" in path.read_text("utf-8"))
    scripts = {path.stem: path for path in found}
    if unknown := [name for name in names if name not in scripts]:
        session.error(f"no benchmark {', '.join(unknown)} (benchmarks: {', '.join(scripts)})")
    stored = Path(session.create_tmp()) / "stored"
    shutil.rmtree(stored, ignore_errors=True)
    shutil.copytree(FOLDER / "results", stored)
    failed = []
    for name in names or scripts:
        try:
            session.run("python", str(scripts[name]), env={"PYTHONPATH": str(FOLDER)})
        except CommandFailed:  # the others run even if one lacks its data
            failed.append(name)
    session.run("python", str(FOLDER / "ratios.py"), "--against", str(stored), success_codes=[0, 1])
    if failed:
        session.error(f"failed: {', '.join(failed)}")
