"""Every task of the workspace: `nox -l` lists them, `nox` runs those with a star, `nox -s NAME` runs one.

`nox` is what CI runs. `nox -s full` is everything else, before a release; `nox -s touched` runs what your change needs.
Each session has a fresh environment of its own; `nox -r` reuses those of the last time. Code that sessions share is in
checks/; the versions come from constraints.txt, the settings of the tools from pyproject.toml.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nox

sys.path.insert(0, str(Path(__file__).parent))

from checks import attempts, environment, summary, versions
from checks.attempts import PARALLEL
from checks.benchmarks import measure
from checks.changes import base, changed
from checks.distributions import install_from_index, make_distributions
from checks.environment import install
from checks.workspace import (
    CONSTRAINTS,
    CSRC,
    EXAMPLES,
    FOLDERS,
    LOCAL,
    PLUGINS,
    PROJECTS,
    PYTHON,
    PYTHONS,
    ROOT,
    TABLES,
    foreign,
    needed,
    normal,
    tested_with,
    tests_of,
)

CORE = ROOT / "core"
TESTING = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
SITE = ("furo", "myst-parser", "sphinx")
PEERS = (
    "datatrove", "fasteners", "fasttext-numpy2-wheel; python_version < '3.13'", "ftfy", "gigatoken", "jsonschema",
    "lm-eval", "megatron-core", "peft", "pyarrow", "pytorch-optimizer", "scikit-learn", "spacy", "transformers",
    "xxhash<4",
)  # fmt: skip
"""Packages that the tests compare our results with."""
XLA = ("torch==2.9.0", "torch-xla==2.9.0")
"""The last release of PyTorch/XLA, and the PyTorch that belongs to it."""
NEURONX = ("boto3", "tenacity", "transformers==4.57.*")
"""Further packages that neuronx-distributed imports; it uses names that release 5 of transformers removed."""
UNTYPED = {"datatrove", "lm-eval", "ray", "spacy", "torch-xla"}
"""Packages without complete type hints, and heavy: they are not installed where types are checked."""
HEAVY = {"accelerate", "h5py", "numpy", "ray", "tensorboardx", "tokenizers", "torch"}
"""Packages that the light half does not import."""
LIGHT_TESTS = ("cli", "config", "destination", "estimate", "hooks", "job", "registry", "stop", "variants")
"""Tests of the core's light half, which pass without PyTorch."""

OTHER_PYTHONS = [version for version in PYTHONS if version != PYTHON]
CODE = ("core/", "csrc/", "plugins/")
STARTS = ("tests/starts/", "core/src/recipe_core/cli/cluster/", "core/src/recipe_core/launch/")
GATE: dict[str, tuple[str, ...]] = {
    "lint": ("",),
    "types": ("checks/", "docs/", "release/", "noxfile.py", *CODE),
    "imports": CODE,
    "core": ("core/",),
    "csrc": ("csrc/",),
    **{f"plugin({path.name})": tuple(f"{at.relative_to(ROOT)}/" for at in needed(path)) for path in PLUGINS},
    "everything": ("checks/", "docs/", "benchmarks/", "tests/", *CODE),
    "docs": ("docs/", "README.md", "CONTRIBUTING.md", "benchmarks/README.md", *CODE),
}
"""The sessions of `nox`, in their order, and the beginnings of the paths whose change needs them."""
FULL: dict[str, tuple[str, ...]] = {
    "versions": ("",),
    "isolation": ("checks/",),
    "csrc_sanitized": ("csrc/",),
    "build": ("release/", *CODE),
    "pythons": CODE,
    "peer": ("docs/examples/", "tests/", *CODE),
    "slow": ("docs/examples/", "tests/", *CODE),
    "xla": ("tests/", "core/", "plugins/"),
    "hosts": STARTS,
    "slurm": STARTS,
    "faults": ("tests/faults/", *CODE),
    "long": ("docs/", "tests/", *CODE),
}
"""The sessions of `nox -s full`, likewise."""
ALL = ("noxfile.py", "constraints.txt", "pyproject.toml", "conftest.py", "checks/", ".ci/")
"""Files that concern every session of the gate."""

nox.needs_version = ">=2026.1"
nox.options.sessions = list(dict.fromkeys(name.partition("(")[0] for name in GATE))
nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
# Tests start Python hundreds of times: with this variable, each of them would compile the whole of PyTorch again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
environment.share_pip_settings()
environment.find_pythons()
_strict = False
"""True in `nox -s full`: a test that fails once fails its session, even if it passes alone."""


Function = Callable[..., None]


def task(**options: Any) -> Callable[[Function], Function]:
    """Make a function a session (``options``: nox's) whose minutes and failures are part of the block at the end."""

    def make(function: Function) -> Function:
        @functools.wraps(function)
        def run(session: nox.Session, *args: Any, **kwargs: Any) -> None:
            with summary.recorded(session.name):
                function(session, *args, **kwargs)

        session: Function = nox.session(run, **options)
        return session

    return make


def test(session: nox.Session, *args: str | Path) -> None:
    """Run the tests that ``args`` name, several at once."""
    attempts.test(session, *PARALLEL, *args, strict=_strict)


def install_xla(session: nox.Session, *more: str) -> None:
    """Install the workspace with PyTorch/XLA and ``more``; their requirements override the versions that CI tests."""
    dropped = {"torch", *("python-dateutil", "tokenizers", "huggingface-hub", "transformers") * bool(more)}
    kept = [line for line in CONSTRAINTS.read_text("utf-8").splitlines() if normal(line) not in dropped]
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join([*kept, *XLA, *(f"{normal(name)}>=0" for name in dropped)]), encoding="utf-8")
    install(session, *XLA, *more, *FOLDERS, *TESTING, versions=constraints)


def find_package(name: str) -> list[str]:
    """Return the folder of package ``name`` in the Python that runs nox, if it is there."""
    found = find_spec(name)
    return [str(Path(folder).parent) for folder in (found and found.submodule_search_locations) or ()]


@task()
def lint(session: nox.Session) -> None:
    """Style, likely bugs, format, no heavy import at the top of a light file (ruff), and plain English."""
    install(session, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "checks/language.py")


@task()
def types(session: nox.Session) -> None:
    """Types, strictly (mypy)."""
    third = foreign(FOLDERS, without=UNTYPED, extras=True)
    install(session, "mypy", "nox", "pytest", "types-PyYAML", *third)
    session.run("mypy", "--num-workers=auto")


@task()
def imports(session: nox.Session) -> None:
    """Check the contracts on imports in pyproject.toml (import-linter)."""
    install(session, "import-linter")
    sources = [path.parent for folder in FOLDERS for path in folder.glob("*/recipe_*/__init__.py")]
    listed = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["root_packages"]
    if missing := {path.name for path in sources} - set(listed):
        session.error(f"pyproject.toml: the contracts of import-linter do not mention {', '.join(sorted(missing))}")
    # The sources are read, never run, so nothing needs to be installed.
    session.run("lint-imports", env={"PYTHONPATH": ":".join(str(path.parent) for path in sources)})


@task()
def core(session: nox.Session) -> None:
    """The tests of the core, with no plugin installed."""
    install(session, f"{CORE}[arrow,fp8,plots,report,s3,text]", *TESTING)
    test(session, *tests_of(CORE))


@task()
def csrc(session: nox.Session) -> None:
    """The tests of the C++ package, built with warnings as errors."""
    install(session, CSRC, *TESTING)
    test(session, *tests_of(CSRC))


@task()
@nox.parametrize("name", [nox.param(folder.name, id=folder.name) for folder in PLUGINS])
def plugin(session: nox.Session, name: str) -> None:
    """The tests of one plugin, with the core and what the plugin and its tests declare, and nothing else."""
    folder = ROOT / "plugins" / name
    install(session, *needed(folder), *tested_with(folder), *TESTING)
    test(session, *tests_of(folder))


@task()
def everything(session: nox.Session) -> None:
    """The tests of all distributions together, on 1, 2 and 4 processes."""
    install(session, *FOLDERS, "nox", "torchao", *TESTING)
    test(session, ROOT / "tests")


@task()
def docs(session: nox.Session) -> None:
    """Links, commands, quotations, reference and site of the documentation; `-- --write` renews the reference."""
    install(session, *FOLDERS, *TESTING, *SITE)
    session.run("python", "docs/generate.py", *(session.posargs or ["--check"]))
    install(session, *EXAMPLES, "transformers")
    session.run("python", "docs/check.py")
    session.run("python", "docs/website/build.py")
    test(session, "docs/examples")


def _notify(session: nox.Session, names: list[str]) -> None:
    """Queue the sessions ``names``, in each of their Pythons."""
    pythons = {"build": PYTHONS, "pythons": OTHER_PYTHONS}
    for name in names:
        for signature in [f"{name}-{python}" for python in pythons.get(name, ())] or [name]:
            session.notify(signature)


@nox.session(venv_backend="none")
def full(session: nox.Session) -> None:
    """Everything that `nox` leaves out: before a release. A test that fails once fails here, though it passes alone."""
    global _strict
    _strict = True
    _notify(session, list(FULL))


@nox.session(venv_backend="none")
def touched(session: nox.Session) -> None:
    """Run the sessions that the difference to the last landed commit needs, by the tables of noxfile.py."""
    paths = changed()
    if paths is None:
        session.error("not a git repository with a commit to compare with; RECIPE_BASE names one")
    all_of_gate = any(path.startswith(ALL) for path in paths)
    needed_ones = [name for name in GATE if all_of_gate or any(path.startswith(GATE[name]) for path in paths)]
    needed_ones += [name for name in FULL if any(path.startswith(FULL[name]) for path in paths)]
    session.log(f"{len(paths)} paths differ from {base()}: {', '.join(needed_ones) or 'nothing to run'}")
    _notify(session, needed_ones)


@task(name="versions")
def check_versions(session: nox.Session) -> None:
    """Check that constraints.txt lists all that is installed; `-- --write` adds to it, `-- --upgrade` renews it."""
    tools = ("build", "coverage", "import-linter", "mypy", "nox", "ruff", "types-PyYAML", "uv")
    building = {line for table in TABLES.values() for line in table["build-system"]["requires"]}
    groups = {line for table in TABLES.values() for line in table.get("dependency-groups", {}).get("test", [])}
    third = {*foreign((*FOLDERS, *EXAMPLES), without=UNTYPED, extras=True), *building, *groups, "pip"}
    wanted = {*third, *TESTING, *SITE, *PEERS, *tools} - {line for line in third if normal(line) in LOCAL}
    versions.check(session, sorted(wanted))


@task()
def isolation(session: nox.Session) -> None:
    """A plugin that imports a package which it does not declare fails its session: tried on a broken copy."""
    copy = Path(session.create_tmp()) / "broken"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".nox", "dist", "runs", "build", "__pycache__"))
    broken = copy / "plugins" / "muon" / "src" / "recipe_muon" / "optimizer.py"
    broken.write_text(broken.read_text("utf-8") + "\nimport h5py\n", encoding="utf-8")
    install(session, "nox", "uv")
    words = ("nox", "--noxfile", str(copy / "noxfile.py"), "--session", "plugin(muon)")
    output = session.run(*words, success_codes=[1], silent=True)
    if "No module named 'h5py'" not in str(output):
        session.error(f"the session failed for another reason: {output}")


@task()
def csrc_sanitized(session: nox.Session) -> None:
    """The tests of the C++ package, and a fuzzer of its reader, under sanitizers of memory and undefined behaviour."""
    install(session, "numpy", "pip", *TESTING)
    session.run("python", "csrc/tests/sanitized.py", *session.posargs)


@task()
def peer(session: nox.Session) -> None:
    """The tests that compare with packages of others (lm-evaluation-harness, megatron-core, transformers, ...).

    A test that is skipped fails, unless its reason names the RECIPE_ variable that supplies what it needs.
    """
    install(session, *FOLDERS, *EXAMPLES, *TESTING, *PEERS)
    folders = (*tests_of(*FOLDERS, *EXAMPLES), ROOT / "tests")
    attempts.test(session, *PARALLEL, "-m", "peer", *folders, strict=_strict, RECIPE_REQUIRE_PEERS="1")


@task()
def xla(session: nox.Session) -> None:
    """Recipes on PyTorch/XLA's CPU device, and native PyTorch of that release beside it."""
    install_xla(session)
    # One after the other: the compiler takes all cores by itself.
    folders = tests_of(ROOT / "plugins" / "xla", ROOT)
    attempts.test(session, "-m", "xla", *folders, strict=_strict, PJRT_DEVICE="CPU")


@task()
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
    path = str(Path(source).resolve())
    attempts.test(session, "-m", "peer", ROOT / "tests" / "neuron", strict=_strict, RECIPE_NEURONX_SOURCE=path)


@task()
def slurm(session: nox.Session) -> None:
    """Runs under a real Slurm of two nodes on this machine, interrupted in every way; 12 to 23 minutes.

    Needs Debian's slurmctld, slurmd, munge and slurm-client, and root; skipped with the reason elsewhere.
    """
    install(session, CORE, *TESTING)
    attempts.test(session, "-m", "slurm", ROOT / "tests" / "starts", strict=_strict)


@task()
def hosts(session: nox.Session) -> None:
    """Every fault under every start that needs no batch system, on hosts made of network namespaces; 11 to 20 minutes.

    Needs root, or the right to make namespaces and to mount; skipped with the reason elsewhere.
    """
    install(session, CORE, *TESTING)
    attempts.test(session, "-m", "hosts", ROOT / "tests" / "starts", strict=_strict)


@task()
def slow(session: nox.Session) -> None:
    """The tests that take long; the other sessions leave them out."""
    install(session, *FOLDERS, *EXAMPLES, *TESTING, "obstore")
    test(session, "-m", "slow and not long", *tests_of(*FOLDERS, *EXAMPLES), ROOT / "tests")


@task()
def faults(session: nox.Session) -> None:
    """A campaign of faults, drawn from a seed (`-- --minutes 20 --seed 3`). Fails at a violation and keeps the case."""
    install(session, *FOLDERS, "pyarrow")
    words = session.posargs or ("--minutes", "5", "--seed", "1")
    session.run("python", "tests/faults/campaign", *words, env={"OMP_NUM_THREADS": "1"})


@task()
def long(session: nox.Session) -> None:
    """The tests that take many minutes each: what every layout saves, under every other layout. One at a time."""
    install(session, f"{CORE}[fp8,plots,report,text]", *FOLDERS, *EXAMPLES, *TESTING)
    marks = "long and not slurm and not hosts"
    attempts.test(session, "-m", marks, *tests_of(*FOLDERS, *EXAMPLES), ROOT / "tests", strict=_strict)


@task()
def coverage(session: nox.Session) -> None:
    """Lines and branches that no test reaches, over all distributions."""
    install(session, *FOLDERS, *TESTING, "coverage", "obstore", "pyarrow")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *map(str, tests_of(*FOLDERS)), *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@task(python=OTHER_PYTHONS)
def pythons(session: nox.Session) -> None:
    """Test the light half, without PyTorch, on the other Pythons that are found; on the oldest
    and the newest, the C++ package."""
    install(session, CORE, *PLUGINS, options=("--no-deps",))
    install(session, *foreign([CORE, *PLUGINS], without=HEAVY), *TESTING)
    test(session, *(next(ROOT.glob(f"core/tests/**/test_{name}.py")) for name in LIGHT_TESTS))
    for words in (("ls",), ("show", "megatron_gpt:tiny"), ("check", "megatron_gpt:tiny")):
        session.run("recipe", *words)
    if session.python in (PYTHONS[0], PYTHONS[-1]):  # compiling takes longer than all of the above
        install(session, CSRC)
        test(session, *tests_of(CSRC))


@task(python=PYTHONS)
def build(session: nox.Session) -> None:
    """Make all distributions, check them, and install them from a local index on every Python that is found.

    With all that they need, and to train, on the Python that runs nox; on the others without PyTorch, whose builds for
    CUDA take gigabytes. `-- full` installs and trains on each.
    """
    make_distributions(session)
    ours = [name for name, folder in LOCAL.items() if folder in FOLDERS]
    if session.python == PYTHON or "full" in session.posargs:
        extras = PROJECTS[LOCAL["recipe-megatron-gpt"]]["optional-dependencies"]
        install_from_index(session, f"recipe-megatron-gpt[{','.join(extras)}]", "recipe-core[arrow,plots,report,text]")
        session.run("recipe", "run", "megatron_gpt:tiny", "--out", session.create_tmp() + "/run")
        session.run("recipe", "generate", session.create_tmp() + "/run", "--prompt", "The", "--tokens", "5")
        install_from_index(session, *ours)
    else:
        install(session, *foreign([CORE, *PLUGINS], without=HEAVY))
        install_from_index(session, *ours, options=("--no-deps",))
    for words in (("ls",), ("show", "megatron_gpt:tiny"), ("check", "megatron_gpt:tiny")):
        session.run("recipe", *words, silent=True)


@task()
def bench(session: nox.Session) -> None:
    """Measure all of benchmarks/ (hours), or what is named (`-- gather`), against peers; fallen ratios are printed."""
    install(session, *FOLDERS, "accelerate", "gigatoken", "megatron-core", "transformers")
    measure(session, session.posargs)
