"""Every task of the workspace: `nox -l` lists them, `nox` runs those with a star, `nox -s NAME` runs one.

Each session has an environment of its own, made anew; `nox -r` keeps the environments of the last time. The versions
come from constraints.txt, the settings of the tools from pyproject.toml.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed
from nox.project import load_toml

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "imports", "core", "csrc", "plugin"]
nox.options.error_on_missing_interpreters = False

# Tests start Python hundreds of times: with this variable, each of them would compile the whole of PyTorch again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
CSRC = ROOT / "csrc"
DIST = ROOT / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The one that runs nox."""
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
FOLDERS = [*sorted(path.parent for path in ROOT.glob("*/pyproject.toml")), *PLUGINS]
EXAMPLES = sorted(path.parent for path in ROOT.glob("docs/examples/*/pyproject.toml"))
TABLES: dict[Path, dict[str, Any]] = {folder: load_toml(folder / "pyproject.toml") for folder in FOLDERS}
PROJECTS: dict[Path, dict[str, Any]] = {folder: table["project"] for folder, table in TABLES.items()}
SITE = ("furo", "myst-parser", "sphinx")
TESTING = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
PARALLEL = ("--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal")
"""Tests wait a lot, for imports and for processes that they start; beyond four at once they get in each other's way."""
XLA = ("torch==2.9.0", "torch-xla==2.9.0")
"""The last release of PyTorch/XLA, and the PyTorch that belongs to it."""
NEURONX = ("boto3", "tenacity", "transformers==4.57.*")
"""Further packages that neuronx-distributed imports; of transformers it takes names that release 5 has no more."""
UNTYPED = {"lm-eval", "torch-xla"}
"""Packages without type hints, heavy and named by extras: they are not installed where types are checked."""
HEAVY = {"accelerate", "h5py", "numpy", "tensorboardx", "tokenizers", "torch"}
"""Packages that the light half does without."""
LIGHT_TESTS = ("cli", "config", "destination", "estimate", "hooks", "job", "registry", "stop", "variants")
"""Tests of the core's light half, which pass without PyTorch."""


def normal(requirement: str) -> str:
    """The name in a requirement, as package registries compare it: ``Recipe_Core==0.1`` gives ``recipe-core``."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


LOCAL = {normal(project["name"]): folder for folder, project in PROJECTS.items()}


def needed(folder: Path) -> list[Path]:
    """``folder`` and the other distributions of this workspace that it or its tests declare, directly or through
    another."""
    found = [folder]
    for asking in found:  # grows while it is walked
        tests = TABLES[asking].get("dependency-groups", {}).get("test", []) if asking == folder else []
        names = map(normal, [*PROJECTS[asking]["dependencies"], *tests])
        found += [LOCAL[name] for name in names if name in LOCAL and LOCAL[name] not in found]
    return found


def foreign(folders: list[Path], without: Collection[str] = (), *, extras: bool = False) -> list[str]:
    """Packages that ``folders`` (with ``extras``, their extras too) declare and this workspace does not hold."""
    declared = {line for folder in folders for line in PROJECTS[folder]["dependencies"]}
    for folder in folders if extras else ():
        declared.update(*PROJECTS[folder].get("optional-dependencies", {}).values())
    return sorted(line for line in declared if normal(line) not in {*LOCAL, *without})


WHEELS = tempfile.TemporaryDirectory()
"""The compiled package, by version of Python: compiling it anew for each session would take longer than its tests."""


def compiled(session: nox.Session, source: Path = CSRC) -> Path:
    """The wheel of the C++ package for the Python of ``session``, with warnings as errors."""
    folder = Path(WHEELS.name) / str(session.python)
    if not folder.exists():
        options = ["--no-deps", "--config-settings=cmake.define.RECIPE_INDEX_WERROR=ON", f"--wheel-dir={folder}"]
        session.run("python", "-m", "pip", "wheel", "--quiet", *options, str(source))
    return next(folder.iterdir())


def install(session: nox.Session, *what: str | Path, options: tuple[str, ...] = ()) -> None:
    """Install distributions of the workspace (folders) and others (names) in the versions that CI tests."""
    # Byte code is written as it is needed: compiling all of PyTorch takes longer than most sessions.
    options = ("--no-compile", "-c", str(ROOT / "constraints.txt"), *options)
    if CSRC in what:
        session.install("--no-deps", "--force-reinstall", *options, str(compiled(session)))
    name = normal(PROJECTS[CSRC]["name"])  # what it declares is installed with the others
    session.install(*options, *(name if item == CSRC else str(item) for item in what))


def test(session: nox.Session, *args: str | Path) -> None:
    """Run pytest with ``args``, then with what follows ``--`` on the line of nox. No test at all is a failure."""
    session.run("pytest", *PARALLEL, *map(str, args), *session.posargs, env={"OMP_NUM_THREADS": "1"})


def install_xla(session: nox.Session, *more: str) -> None:
    """Install the workspace with PyTorch/XLA, and ``more``, whose needs come before the versions that CI tests."""
    dropped = ("torch", *("python-dateutil", "tokenizers", "huggingface-hub", "transformers") * bool(more))
    versions = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    kept = [line for line in versions.splitlines() if line.partition("==")[0] not in dropped]
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join([*kept, *XLA]), encoding="utf-8")
    session.install("--no-compile", "-c", str(constraints), *XLA, *more, *map(str, FOLDERS), *TESTING)


def find_package(name: str) -> list[str]:
    """The folder in which the Python that runs nox finds package ``name``, if it does."""
    found = find_spec(name)
    return [str(Path(folder).parent) for folder in (found and found.submodule_search_locations) or ()]


def tests_of(*folders: Path) -> list[Path]:
    """The folders of tests of ``folders``."""
    return [folder / "tests" for folder in folders]


@nox.session
def lint(session: nox.Session) -> None:
    """Style, likely bugs, format, and no heavy import at the top of a light file (ruff)."""
    install(session, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Types, strictly (mypy)."""
    install(
        session,
        "mypy",
        "nox",
        "pytest",
        "types-PyYAML",
        *foreign(FOLDERS, without=UNTYPED, extras=True),
    )
    session.run("mypy")


@nox.session
def imports(session: nox.Session) -> None:
    """Check the contracts on imports in pyproject.toml (import-linter)."""
    install(session, "import-linter")
    sources = [path.parent for folder in FOLDERS for path in folder.glob("*/recipe_*/__init__.py")]
    listed = load_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["root_packages"]
    if missing := {path.name for path in sources} - set(listed):
        session.error(f"pyproject.toml: the contracts of import-linter do not mention {', '.join(sorted(missing))}")
    # The sources are read, never run, so nothing needs to be installed.
    session.run("lint-imports", env={"PYTHONPATH": ":".join(str(path.parent) for path in sources)})


@nox.session
def core(session: nox.Session) -> None:
    """The tests of the core, with no plugin installed."""
    install(session, f"{ROOT / 'core'}[fp8,plots,report,text]", *TESTING)
    test(session, *tests_of(ROOT / "core"))


@nox.session
def csrc(session: nox.Session) -> None:
    """The tests of the C++ package, built with warnings as errors."""
    install(session, CSRC, *TESTING)
    test(session, *tests_of(CSRC))


@nox.session
@nox.parametrize("name", [nox.param(folder.name, id=folder.name) for folder in PLUGINS])
def plugin(session: nox.Session, name: str) -> None:
    """The tests of one plugin, with the core and what the plugin and its tests declare, and nothing else."""
    folder = ROOT / "plugins" / name
    install(session, *needed(folder), *TESTING)
    test(session, *tests_of(folder))


@nox.session
def everything(session: nox.Session) -> None:
    """The tests of all distributions together, on 1, 2 and 4 processes."""
    install(session, *FOLDERS, "torchao", *TESTING)
    test(session, ROOT / "tests")


@nox.session
def csrc_sanitized(session: nox.Session) -> None:
    """The tests of the C++ package, and a fuzzer of its reader, under sanitizers of memory and undefined behaviour."""
    install(session, "numpy", *TESTING)
    session.run("python", "csrc/tests/sanitized.py", *session.posargs)


@nox.session
def peer(session: nox.Session) -> None:
    """The tests that compare with packages of others (lm-evaluation-harness, megatron-core, transformers, ...)."""
    install(
        session, *FOLDERS, *EXAMPLES, *TESTING,
        "jsonschema", "lm-eval", "megatron-core", "pyarrow", "pytorch-optimizer", "scikit-learn", "transformers",
    )  # fmt: skip
    test(session, "-m", "peer", *tests_of(*FOLDERS, *EXAMPLES), ROOT / "tests")


@nox.session
def xla(session: nox.Session) -> None:
    """Recipes on PyTorch/XLA's CPU device, and native PyTorch of that release beside it."""
    install_xla(session)
    # One after the other: the compiler takes all cores by itself.
    session.run(
        "pytest", "-m", "xla", str(ROOT / "plugins" / "xla" / "tests"), str(ROOT / "tests"), *session.posargs,
        env={"OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"},
    )  # fmt: skip


@nox.session
def neuronx(session: nox.Session) -> None:
    """Tensor parallelism over the real neuronx-distributed, in its CPU mode: gradients and a step against dense.

    AWS's index has the package; its public source, a checkout of github.com/aws-neuron/neuronx-distributed, serves too.
    """
    source = os.environ.get("RECIPE_NEURONX_SOURCE") or next(iter(find_package("neuronx_distributed")), "")
    if not (Path(source) / "neuronx_distributed" / "parallel_layers").is_dir():
        session.error(
            f"neuronx-distributed is not here ({source or 'not importable by ' + sys.executable}); let "
            "RECIPE_NEURONX_SOURCE name the folder src of its source"
        )
    install_xla(session, *NEURONX)
    files = [str(ROOT / "tests" / "neuron")]
    environment = {"OMP_NUM_THREADS": "1", "RECIPE_NEURONX_SOURCE": str(Path(source).resolve())}
    session.run("pytest", "-m", "peer", *files, *session.posargs, env=environment)


@nox.session
def slurm(session: nox.Session) -> None:
    """Runs under a real Slurm of two nodes on this machine, interrupted in every way; some ten minutes.

    Needs Debian's slurmctld, slurmd, munge and slurm-client, and root; skipped with the reason elsewhere.
    """
    install(session, ROOT / "core", *TESTING)
    session.run("pytest", "-m", "slurm", "--numprocesses=0", str(ROOT / "tests" / "slurm"), *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The tests that take long; the other sessions leave them out."""
    install(session, *FOLDERS, *EXAMPLES, *TESTING)
    test(session, "-m", "slow and not long", *tests_of(*FOLDERS, *EXAMPLES), ROOT / "tests")


@nox.session
def faults(session: nox.Session) -> None:
    """A campaign of faults, drawn from a seed (`-- --minutes 20 --seed 3`). Fails at a violation and keeps the case."""
    install(session, *FOLDERS, "pyarrow")
    session.run("python", "tests/faults/campaign", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def long(session: nox.Session) -> None:
    """The tests that take many minutes each: what every layout saves, under every other layout. One at a time."""
    install(session, *FOLDERS, *EXAMPLES, *TESTING)
    test(session, "-m", "long", "--numprocesses=0", *tests_of(*FOLDERS, *EXAMPLES), ROOT / "tests")


@nox.session
def coverage(session: nox.Session) -> None:
    """Lines and branches that no test reaches, over all distributions."""
    install(session, *FOLDERS, *TESTING, "coverage")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *map(str, tests_of(*FOLDERS)), *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session(python=[version for version in PYTHONS if version != PYTHON])
def pythons(session: nox.Session) -> None:
    """Test the light half, without PyTorch, on the other Pythons that are found; on the oldest
    and the newest, the C++ package."""
    install(session, ROOT / "core", *PLUGINS, options=("--no-deps",))
    install(session, *foreign([ROOT / "core", *PLUGINS], without=HEAVY), *TESTING)
    test(session, *(next(ROOT.glob(f"core/tests/**/test_{name}.py")) for name in LIGHT_TESTS))
    for words in (("ls",), ("show", "megatron_gpt:tiny"), ("check", "megatron_gpt:tiny")):
        session.run("recipe", *words)
    if session.python in (PYTHONS[0], PYTHONS[-1]):  # compiling takes longer than all of the above
        install(session, CSRC)
        test(session, *tests_of(CSRC))


@nox.session
def docs(session: nox.Session) -> None:
    """Links, commands, quotations, reference and site of the documentation; `-- --write` renews the reference."""
    install(session, *FOLDERS, *TESTING, *SITE)
    session.run("python", "docs/generate.py", *(session.posargs or ["--check"]))
    install(session, *EXAMPLES, "transformers")
    session.run("python", "docs/check.py")
    session.run("python", "docs/website/build.py")
    session.run("pytest", "docs/examples", env={"OMP_NUM_THREADS": "1"})


def make_distributions(session: nox.Session) -> None:
    """Fill dist/ for the Python of ``session``, check it, and write its index.

    What is compiled comes from its source distribution.
    """
    made = Path(WHEELS.name) / "dist"
    if not made.exists():  # the first Python makes what serves all of them
        shutil.rmtree(DIST, ignore_errors=True)
        install(session, "build")
        for folder in FOLDERS:
            only = ("--sdist",) if folder == CSRC else ()
            session.run("python", "-m", "build", *only, "--outdir", str(DIST), str(folder), silent=True)
        made.touch()
    (source,) = DIST.glob(f"{PROJECTS[CSRC]['name'].replace('-', '_')}-*.tar.gz")
    shutil.copy(compiled(session, source), DIST)
    session.run("python", "release/wheels.py", str(DIST))


def install_from_index(session: nox.Session, *names: str, options: tuple[str, ...] = ()) -> None:
    """Install distributions of this workspace by their names, and see that they came from dist/."""
    report = Path(session.create_tmp()) / "report.json"
    words = [f"{name}=={PROJECTS[LOCAL[normal(name)]]['version']}" for name in names]
    index = f"--extra-index-url={(DIST / 'simple').as_uri()}"
    install(session, *words, options=(index, f"--report={report}", "--quiet", *options))
    places = {
        normal(item["metadata"]["name"]): item["download_info"]["url"]
        for item in json.loads(report.read_text())["install"]
    }
    if strange := {url for name, url in places.items() if name in LOCAL and not url.startswith(DIST.as_uri())}:
        session.error(f"not from {DIST}: {', '.join(sorted(strange))}")
    session.log(f"from dist/: {', '.join(sorted(places.keys() & LOCAL.keys()))}")


@nox.session(python=PYTHONS)
def build(session: nox.Session) -> None:
    """Make all distributions, check them, and install them from a local index on every Python that is found.

    With all that they need, and to train, on the Python that runs nox; on the others without PyTorch, whose builds for
    CUDA take gigabytes. `-- full` installs and trains on each.
    """
    make_distributions(session)
    if session.python == PYTHON or "full" in session.posargs:
        extras = PROJECTS[LOCAL["recipe-megatron-gpt"]]["optional-dependencies"]
        install_from_index(session, f"recipe-megatron-gpt[{','.join(extras)}]", "recipe-core[plots,report,text]")
        session.run("recipe", "run", "megatron_gpt:tiny", "--out", session.create_tmp() + "/run")
        session.run("recipe", "generate", session.create_tmp() + "/run", "--prompt", "The", "--tokens", "5")
        install_from_index(session, *LOCAL)
    else:
        install(session, *foreign([ROOT / "core", *PLUGINS], without=HEAVY))
        install_from_index(session, *LOCAL, options=("--no-deps",))
    for words in (("ls",), ("show", "megatron_gpt:tiny"), ("check", "megatron_gpt:tiny")):
        session.run("recipe", *words, silent=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure all of benchmarks/ (hours), or what is named (`-- gather`), against peers; fallen ratios are printed."""
    install(session, *FOLDERS, "accelerate", "megatron-core", "transformers")
    folder = ROOT / "benchmarks"
    found = (path for path in sorted(folder.rglob("[a-z]*.py")) if "common.write(" in path.read_text("utf-8"))
    scripts = {path.stem: path for path in found}  # campaigns, which are folders with a __main__, are run by hand
    stored = Path(session.create_tmp()) / "stored"
    shutil.rmtree(stored, ignore_errors=True)
    shutil.copytree(folder / "results", stored)
    failed = []
    for name in session.posargs or scripts:
        try:
            session.run("python", str(scripts[name]), env={"PYTHONPATH": str(folder)})
        except CommandFailed:  # one that lacks its data does not keep the others from running
            failed.append(name)
    session.run("python", str(folder / "ratios.py"), "--against", str(stored), success_codes=[0, 1])
    if failed:
        session.error(f"failed: {', '.join(failed)}")
