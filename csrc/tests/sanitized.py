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
FUZZ_ROUNDS = 1_000_000


def run(*command: str | Path, **environment: str) -> None:
    """Run ``command``; its exit code, where it is not 0, becomes ours."""
    line = list(map(str, command))
    print("+", *line, flush=True)
    code = subprocess.run(line, env={**os.environ, **environment}, check=False).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)


def runtime(library: str) -> str:
    """Where the compiler keeps a library of its sanitizers."""
    compiler = os.environ.get("CXX", "c++")
    found = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def fuzz(folder: Path) -> None:
    """The reader alone, without Python in the process, so that memory which is never freed shows too."""
    options = f"-DRECIPE_INDEX_SANITIZE={SANITIZERS}", "-DRECIPE_INDEX_WERROR=ON", "-DCMAKE_BUILD_TYPE=Debug"
    run("cmake", "-S", SOURCE, "-B", folder, *options)
    run("cmake", "--build", folder, "--target", "fuzz_idx")
    run(folder / "fuzz_idx", str(FUZZ_ROUNDS))


def test(folder: Path, arguments: list[str]) -> None:
    """The tests of Python with the sanitizers loaded before Python itself."""
    settings = f"cmake.define.RECIPE_INDEX_SANITIZE={SANITIZERS}", "cmake.define.RECIPE_INDEX_WERROR=ON"
    options = [part for setting in (*settings, "install.strip=false") for part in ("-C", setting)]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *options, SOURCE)
    run(
        *(sys.executable, "-m", "pytest"),
        "-s",  # pytest would swallow the report of a sanitizer, and the reason with it
        *("-p", "no:cacheprovider", "--timeout=600", SOURCE / "tests", *arguments),
        PYTHONPATH=str(folder),
        # One file, for the second does not find the first by itself.
        LD_PRELOAD=" ".join(map(runtime, ("libasan.so", "libubsan.so"))),
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:abort_on_error=1",  # Python itself never frees all
        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
        HYPOTHESIS_PROFILE="ci",
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        fuzz(Path(temporary, "fuzz"))
        test(Path(temporary, "package"), sys.argv[1:])
