"""Tasks: `nox` runs them all, `nox -s NAME` one."""

import nox


@nox.session
def lint(session: nox.Session) -> None:
    """Style and likely bugs (ruff)."""
    session.install("ruff")
    session.run("ruff", "check", ".")


@nox.session
def test(session: nox.Session) -> None:
    """The tests, the recipe, and the conformance checks."""
    session.install("-e", ".", "pytest")
    session.run("pytest", env={"OMP_NUM_THREADS": "1"})
    session.run("recipe", "run", "new_plugin:tiny", "--out", f"{session.create_tmp()}/run")
