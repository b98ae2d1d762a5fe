"""Every task of the workspace: `nox -l` lists them, `nox` runs those with a star, `nox -s NAME` runs one.

Each session has an environment of its own, made anew; `nox -r` keeps the environments of the last time. The versions
come from constraints.txt, the settings of the tools from pyproject.toml.
"""

from __future__ import annotations

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
from nox.project import load_toml

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "imports", "core", "csrc", "plugin"]
nox.options.error_on_missing_interpreters = False

# Tests start Python hundreds of times: with this variable, each of them would compile the whole of PyTorch again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
CSRC = ROOT / "csrc"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
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
"""What neuronx-distributed imports besides; of transformers it takes names that release 5 has no more."""
HEAVY = {"accelerate", "h5py", "numpy", "tensorboardx", "tokenizers", "torch"}
"""What the light half does without."""
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
    """What ``folders`` (with ``extras``, their extras too) declare and this workspace does not hold."""
    declared = {line for folder in folders for line in PROJECTS[folder]["dependencies"]}
    for folder in folders if extras else ():
        declared.update(*PROJECTS[folder].get("optional-dependencies", {}).values())
    return sorted(line for line in declared if normal(line) not in {*LOCAL, *without})


WHEELS = tempfile.TemporaryDirectory()
"""The compiled package, by version of Python: compiling it anew for each session would take longer than its tests."""


def compiled(session: nox.Session) -> Path:
    """The wheel of the C++ package for the Python of ``session``, with warnings as errors."""
    folder = Path(WHEELS.name) / str(session.python)
    if not folder.exists():
        options = ["--no-deps", "--config-settings=cmake.define.RECIPE_INDEX_WERROR=ON", f"--wheel-dir={folder}"]
        session.run("python", "-m", "pip", "wheel", "--quiet", *options, str(CSRC))
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
    install(session, "mypy", "nox", "pytest", "types-PyYAML", *foreign(FOLDERS, without={"torch-xla"}, extras=True))
    session.run("mypy")


@nox.session
def imports(session: nox.Session) -> None:
    """Who may import what: the contracts in pyproject.toml (import-linter)."""
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
    install(session, f"{ROOT / 'core'}[plots,text]", *TESTING)
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
    install(session, *FOLDERS, *TESTING)
    test(session, ROOT / "tests")


@nox.session
def csrc_sanitized(session: nox.Session) -> None:
    """The tests of the C++ package, and a fuzzer of its reader, under sanitizers of memory and undefined behaviour."""
    install(session, "numpy", *TESTING)
    session.run("python", "csrc/tests/sanitized.py", *session.posargs)


@nox.session
def peer(session: nox.Session) -> None:
    """The tests that compare with megatron-core, pytorch-optimizer, scikit-learn and transformers, and with schemas."""
    install(
        session, *FOLDERS, *EXAMPLES, *TESTING,
        "jsonschema", "megatron-core", "pyarrow", "pytorch-optimizer", "scikit-learn", "transformers",
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


@nox.session(python=[version for version in PYTHONS if version != f"{sys.version_info[0]}.{sys.version_info[1]}"])
def pythons(session: nox.Session) -> None:
    """What needs no PyTorch, on the other Pythons that are found: commands that check and print; on the oldest and the
    newest, the C++ package."""
    install(session, ROOT / "core", *PLUGINS, options=("--no-deps",))
    install(session, *foreign([ROOT / "core", *PLUGINS], without=HEAVY), *TESTING)
    test(session, *(next(ROOT.glob(f"core/tests/*/test_{name}.py")) for name in LIGHT_TESTS))
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


@nox.session
def build(session: nox.Session) -> None:
    """Source distributions and wheels of all distributions in dist/, installed from there and run once."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    install(session, "build")
    for folder in FOLDERS:
        session.run("python", "-m", "build", "--outdir", str(dist), str(folder), silent=True)
    wheels = sorted(dist.glob("*.whl"))
    if len(wheels) != len(FOLDERS) or len(list(dist.glob("*.tar.gz"))) != len(FOLDERS):
        session.error(f"{dist}: expected a wheel and a source distribution of each of {len(FOLDERS)} folders")
    install(session, *wheels)
    session.run("recipe", "ls")
    session.run("recipe", "run", "megatron_gpt:tiny", "--out", session.create_tmp() + "/run")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the speed against the peers, with all of benchmarks/ or what is named (`-- gather`); many minutes."""
    install(session, *FOLDERS, "accelerate", "megatron-core", "transformers")
    for name in session.posargs or ["index_build", "gather", "optimizer", "train_gpt"]:
        session.run("python", f"benchmarks/{name}.py")
