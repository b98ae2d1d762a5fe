"""Build recipe_index with AddressSanitizer and UndefinedBehaviorSanitizer, run its tests and the fuzzer of .idx files.

    python csrc/tests/sanitized.py [ARGUMENT OF PYTEST ...]

Needs GCC or Clang, CMake, pip, and pytest, pytest-timeout, hypothesis and numpy in this environment. What is built goes
to a temporary folder, and the installed recipe_index stays as it is. Any finding ends in another exit code than 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
SANITIZERS = "address,undefined"
FUZZ_ROUNDS = 300_000


def run(*command: str | Path, **environment: str) -> None:
    """Run ``command``; its exit code, where it is not 0, becomes ours."""
    line = list(map(str, command))
    print("+", *line, flush=True)
    code = subprocess.run(line, env={**os.environ, **environment}, check=False).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)


def runtime(library: str) -> str:
    """The path of a library of the compiler's sanitizers."""
    compiler = os.environ.get("CXX", "c++")
    found = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def fuzz(folder: Path) -> None:
    """The reader alone, without Python in the process, so that memory which is never freed shows too."""
    options = f"-DRECIPE_INDEX_SANITIZE={SANITIZERS}", "-DRECIPE_INDEX_WERROR=ON", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"
    run("cmake", "-S", SOURCE, "-B", folder, *options)
    run("cmake", "--build", folder, "--target", "fuzz_idx", "--parallel", str(os.cpu_count() or 1))
    run(folder / "fuzz_idx", str(FUZZ_ROUNDS))


def test(folder: Path, arguments: list[str]) -> None:
    """The tests of Python with the sanitizers loaded before Python itself."""
    settings = f"cmake.define.RECIPE_INDEX_SANITIZE={SANITIZERS}", "cmake.define.RECIPE_INDEX_WERROR=ON"
    options = [f"--config-settings={setting}" for setting in (*settings, "install.strip=false")]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *options, SOURCE)
    environment = {
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": " ".join(map(runtime, ("libasan.so", "libubsan.so"))),
        # Python itself does not free all it has at its end: fuzz() looks for leaks instead.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    # An installed recipe_index without sanitizers, found first, would pass everything.
    found = f"import sys, recipe_index; sys.exit(not recipe_index.__file__.startswith({str(folder)!r}))"
    run(sys.executable, "-c", found, **environment)
    # -s, because pytest would swallow the report of a sanitizer, and the reason with it.
    options = ["-s", "-p", "no:cacheprovider", "--timeout=600"]
    run(sys.executable, "-m", "pytest", *options, SOURCE / "tests", *arguments, **environment)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        fuzz(Path(temporary, "fuzz"))
        test(Path(temporary, "package"), sys.argv[1:])
