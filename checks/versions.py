"""constraints.txt: every package that any session installs, for every Python, in the version that CI tests."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import nox

from checks.environment import OF_TORCH
from checks.workspace import CONSTRAINTS, LOCAL, PYTHONS, normal

HEADER = """\
# The versions that CI tests: `pip install -c constraints.txt ...`. The distributions ask for lower bounds only.
# All that any task installs is here, tools and what builds need included; nox refuses what is not. A package without
# one release for every Python has several lines. `nox -s versions` compares this list with what is asked for and names
# newer releases; `-- --write` adds what is missing, `-- --upgrade` takes the newest of all. Then: `nox`, `nox -s full`.
"""
Versions = dict[str, str]
"""Versions by the names of packages."""


def check(session: nox.Session, wanted: Collection[str]) -> None:
    """Compare constraints.txt with what ``wanted`` asks for on every Python; write it, if the line of nox says so."""
    words = set(session.posargs)
    if unknown := words - {"--write", "--upgrade"}:
        session.error(f"unknown: {' '.join(sorted(unknown))}; expected --write or --upgrade")
    listed = CONSTRAINTS.read_text("utf-8")
    newest = {python: _resolve(session, wanted, python, "") for python in PYTHONS}
    kept = {python: _resolve(session, wanted, python, listed) for python in PYTHONS}
    chosen = newest if "--upgrade" in words else kept
    text = HEADER + "\n" + "\n".join(_lines(chosen)) + "\n"
    if words:
        CONSTRAINTS.write_text(text, encoding="utf-8")
        return
    outdated = sorted({
        f"{name} {version} -> {newest[python][name]}"
        for python, versions in chosen.items()
        for name, version in versions.items()
        if newest[python].get(name, version) != version
    })  # fmt: skip
    session.log(f"{len(outdated)} newer releases{': ' * bool(outdated)}{', '.join(outdated)}")
    missing = sorted(set(_lines(chosen)) - set(listed.splitlines()))
    if missing:
        session.error(f"constraints.txt lacks {', '.join(missing)}; `nox -s versions -- --write` adds them")


def _resolve(session: nox.Session, wanted: Collection[str], python: str, listed: str) -> Versions:
    """Resolve what uv would install on ``python`` under Linux, in the ``listed`` versions where they fit one another.

    Packages of this workspace and of CUDA are left out.
    """
    requirements = Path(session.create_tmp()) / "wanted.txt"
    requirements.write_text("\n".join(wanted), encoding="utf-8")
    output = Path(session.create_tmp()) / f"{python}.txt"
    output.write_text(listed, encoding="utf-8")  # uv keeps to the versions of the file that it writes anew
    session.run(
        "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", f"--python-version={python}",
        "--python-platform=x86_64-manylinux_2_28", f"--output-file={output}", str(requirements),
        external=True, silent=True,
        env={"UV_INDEX": "", "UV_FIND_LINKS": ""},  # which may have files for one Python only
    )  # fmt: skip
    found = dict(line.split("==", 1) for line in output.read_text("utf-8").splitlines() if re.match(r"[\w.-]+==", line))
    return {
        name: version.partition("+")[0].partition(";")[0].strip()  # 2.13.0+cpu: a build, not a version
        for name, version in found.items()
        if normal(name) not in LOCAL and not OF_TORCH.match(normal(name))
    }


def _lines(versions: Mapping[str, Versions]) -> list[str]:
    """The lines of constraints.txt: one for a package of one version, else one for each group of Pythons."""
    lines = []
    for name in sorted({name for found in versions.values() for name in found}):
        pythons: dict[str, list[str]] = {}
        for python in PYTHONS:
            if version := versions[python].get(name):
                pythons.setdefault(version, []).append(python)
        for version, used in pythons.items():
            lines.append(f"{name}=={version}" + (f" ; {_marker(used)}" if len(pythons) > 1 else ""))
    return lines


def _marker(pythons: list[str]) -> str:
    """The marker for neighbouring Pythons."""
    if len(pythons) == 1:
        return f'python_version == "{pythons[0]}"'
    begin, end = PYTHONS.index(pythons[0]), PYTHONS.index(pythons[-1]) + 1
    bounds = [f'python_version >= "{PYTHONS[begin]}"'] if begin else []
    bounds += [f'python_version < "{PYTHONS[end]}"'] if end < len(PYTHONS) else []
    return " and ".join(bounds)
