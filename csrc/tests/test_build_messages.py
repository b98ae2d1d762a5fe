"""Messages of the build where something that it needs is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1]
WAYS_OUT = ("apt-get install g++ python3-dev", "dnf install gcc-c++", "xcode-select --install", "Build Tools", "conda")

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake on the PATH")


def configure(folder: Path, *options: str, **variables: str) -> str:
    """The message with which configuring fails, its line breaks taken out."""
    words = ["cmake", "-S", str(CSRC), "-B", str(folder), *options]
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode
    return " ".join(done.stderr.split())


def test_no_compiler(tmp_path: Path) -> None:
    message = configure(tmp_path, CXX="/nowhere/g++")
    assert "there is no C++ compiler here (looked for: /nowhere/g++). Install one:" in message
    assert all(way in message for way in WAYS_OUT)
    assert message.count("CMake Error") == 1


def test_no_headers_of_python(tmp_path: Path) -> None:
    options = ("-DSKBUILD=2", f"-DPython_EXECUTABLE={sys.executable}", "-DPython_INCLUDE_DIR=/nowhere")
    message = configure(tmp_path, *options)
    assert f"the headers of {sys.executable} (Python.h) are not here" in message
    assert all(way in message for way in WAYS_OUT)
