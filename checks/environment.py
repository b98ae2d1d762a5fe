"""The environment of a session: only the packages that it declares, installed by uv in seconds.

uv links packages from its cache instead of copying them, so that the environments of a run share one PyTorch on the
disk. The distributions of this workspace are built once per run.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

from checks.workspace import CONSTRAINTS, CSRC, LOCAL, PROJECTS, PYTHON, normal

WHEELS = tempfile.TemporaryDirectory(prefix="recipe-wheels-")
"""The wheels of this run, by version of Python. Its name is new each time, so uv finds none of them in its cache."""
OF_TORCH = re.compile(r"nvidia-|cuda-|triton$")
"""Packages whose versions PyTorch's builds for CUDA pin exactly."""
SETTINGS = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
"""Pip's settings for the places of packages, and uv's variables for the same."""
_COMPILED: dict[str, Path] = {}
"""The last environment with byte code, by version of Python."""


def share_pip_settings() -> None:
    """Let uv look for packages where pip is configured to; it does not read pip's files itself."""
    line = [sys.executable, "-m", "pip", "config", "list"]
    answer = subprocess.run(line, capture_output=True, text=True, check=False)  # `global.find-links='/folder'`
    values = dict(found.split("=", 1) for found in answer.stdout.splitlines() if "=" in found)
    for place in (":env:", "site", "user", "global"):  # the first counts most
        for name, variable in SETTINGS.items():
            value = values.get(f"{place}.{name}")
            if value and variable not in os.environ:
                os.environ[variable] = " ".join(ast.literal_eval(value).split())
                os.environ.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # as pip takes the best of all


def find_pythons() -> None:
    """Let nox find every Python that pyenv has: of the commands in its folder, only those of chosen versions work."""
    if not shutil.which("pyenv"):
        return

    def ask(*words: str) -> str:
        return subprocess.run(["pyenv", *words], capture_output=True, text=True, check=False).stdout

    chosen = ask("version-name").strip().split(":")  # the first remains `python3`
    os.environ["PYENV_VERSION"] = ":".join(
        dict.fromkeys([*chosen, *ask("versions", "--bare", "--skip-aliases").split()])
    )


def install(
    session: nox.Session, *what: str | Path, options: tuple[str, ...] = (), versions: Path = CONSTRAINTS
) -> None:
    """Install distributions of the workspace (folders, ``folder[extra]``) and others (names) into ``session``.

    Versions are those that CI tests; a package that ``versions`` does not list is an error.
    """
    alone = "--no-deps" in options
    lines = [_requirement(session, str(item), alone) for item in what]
    wheels = _wheels(session)
    # Another index may have a version for this machine's Python only, and uv looks for each version in one index.
    other = {"UV_INDEX": ""} if session.python not in (None, PYTHON) else {}
    session.install(f"--constraints={versions}", f"--find-links={wheels}", *options, *lines, env=other)
    _refuse_unlisted(session, versions)
    _share_bytecode(session)


def _wheels(session: nox.Session) -> Path:
    folder = Path(WHEELS.name) / str(session.python or "any")
    folder.mkdir(exist_ok=True)
    return folder


def wheel(session: nox.Session, folder: Path, source: Path | None = None) -> Path:
    """Return the wheel of ``folder`` (or ``source``, its source distribution) for the Python of ``session``.

    The compiled one is built with warnings as errors.
    """
    wheels = _wheels(session)
    name = PROJECTS[folder]["name"].replace("-", "_")
    if not (found := list(wheels.glob(f"{name}-*.whl"))):
        strict = ["--config-setting=cmake.define.RECIPE_INDEX_WERROR=ON"] if folder == CSRC else []
        python = session.virtualenv.location
        session.run(
            "uv", "build", "--quiet", "--wheel", f"--python={python}", f"--build-constraints={CONSTRAINTS}",
            f"--out-dir={wheels}", *strict, str(source or folder), external=True,
        )  # fmt: skip
        found = list(wheels.glob(f"{name}-*.whl"))
    return found[0]


def _requirement(session: nox.Session, item: str, alone: bool) -> str:
    """Return the requirement for ``item``; build a folder's wheel and, unless ``alone``, those of its dependencies."""
    place, bracket, extras = item.partition("[")
    if not Path(place).is_dir() or os.sep not in place:
        return item
    folder = Path(place)
    folders = [folder]
    for each in folders:  # grows while it is walked
        wheel(session, each)
        names = () if alone else map(normal, PROJECTS[each]["dependencies"])
        declared = [LOCAL[name] for name in names if name in LOCAL]
        folders += [other for other in declared if other not in folders]
    return f"{PROJECTS[folder]['name']}{bracket}{extras} @ {wheel(session, folder).as_uri()}"


def _refuse_unlisted(session: nox.Session, versions: Path) -> None:
    """End ``session`` if a package is installed that ``versions`` does not list: its version could change any day."""
    frozen = session.run("uv", "pip", "freeze", silent=True, log=False, external=True)
    names = {normal(line) for line in str(frozen).splitlines() if line and not line.startswith(("#", "Using"))}
    listed = {normal(line) for line in versions.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"}
    if unlisted := {name for name in names - listed - LOCAL.keys() if not OF_TORCH.match(name)}:
        session.error(
            f"{versions.name} does not list {', '.join(sorted(unlisted))}, which were installed in the newest version; "
            "`nox -s versions -- --write` adds them"
        )


def _share_bytecode(session: nox.Session) -> None:
    """Link byte code that an earlier session wrote: compiling all of PyTorch takes longer than many tests.

    Python itself compares each file with its source, by time and size.
    """
    (site,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
    version = str(session.python or "")
    earlier = _COMPILED.get(version, site)
    for cache in earlier.rglob("__pycache__") if earlier != site and earlier.is_dir() else ():
        package = cache.relative_to(earlier)
        target = site / package
        if not target.parent.is_dir() or package.parts[0].startswith("recipe_"):  # ours may be another state
            continue
        target.mkdir(exist_ok=True)
        for path in cache.iterdir():
            if not (target / path.name).exists():
                os.link(path, target / path.name)
    if (site / "torch").is_dir():
        _COMPILED[version] = site
