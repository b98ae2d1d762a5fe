"""The distributions in dist/: made, checked, and installed as a user would, from a local index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nox

from checks.environment import WHEELS, install, wheel
from checks.workspace import CONSTRAINTS, CSRC, FOLDERS, LOCAL, PROJECTS, ROOT, normal

DIST = ROOT / "dist"


def make_distributions(session: nox.Session) -> None:
    """Fill dist/ for the Python of ``session``, check it, and write its index.

    What is compiled comes from its source distribution.
    """
    made = Path(WHEELS.name) / "dist"
    if not made.exists():  # the first Python makes what serves all of them
        shutil.rmtree(DIST, ignore_errors=True)
        for folder in FOLDERS:
            kinds = ("--sdist",) if folder == CSRC else ("--sdist", "--wheel")
            line = ("uv", "build", "--quiet", *kinds, f"--build-constraints={CONSTRAINTS}", f"--out-dir={DIST}")
            session.run(*line, str(folder), external=True)
        made.touch()
    (source,) = DIST.glob(f"{PROJECTS[CSRC]['name'].replace('-', '_')}-*.tar.gz")
    shutil.copy(wheel(session, CSRC, source), DIST)
    session.run("python", "release/wheels.py", str(DIST))


def install_from_index(session: nox.Session, *names: str, options: tuple[str, ...] = ()) -> None:
    """Install distributions of this workspace by their names, by pip, and see that they came from dist/."""
    report = Path(session.create_tmp()) / "report.json"
    words = [f"{name}=={PROJECTS[LOCAL[normal(name)]]['version']}" for name in names]
    index = f"--extra-index-url={(DIST / 'simple').as_uri()}"
    install(session, "pip")
    line = ("python", "-m", "pip", "install", "--no-compile", "-c", str(CONSTRAINTS), index, f"--report={report}")
    session.run_install(*line, "--quiet", *options, *words)
    places = {
        normal(item["metadata"]["name"]): item["download_info"]["url"]
        for item in json.loads(report.read_text())["install"]
    }
    if strange := {url for name, url in places.items() if name in LOCAL and not url.startswith(DIST.as_uri())}:
        session.error(f"not from {DIST}: {', '.join(sorted(strange))}")
    session.log(f"from dist/: {', '.join(sorted(places.keys() & LOCAL.keys()))}")
