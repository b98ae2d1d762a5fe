"""Stands in for Slurm's commands in tests: jobs are processes of this machine, whose states are files.

Its name is that of the command that it stands in for; ``$SLURM_STAND_IN`` is its folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

FOLDER = Path(os.environ["SLURM_STAND_IN"])
ARRAY = 5
"""MaxArraySize: the largest index is one less."""


def sbatch(words: list[str]) -> None:
    """Start the tasks of the script on standard input; print the id of the job."""
    if (refusal := FOLDER / "refuses").exists():
        sys.exit(refusal.read_text())
    script = sys.stdin.read()
    number = len(list(FOLDER.glob("*.sh"))) + 1
    (FOLDER / f"{number}.sh").write_text(script)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=\"?(.*?)\"?$", script, re.MULTILINE))
    for one in options["array"].split(","):
        first, _, last = one.partition("-")
        for index in range(int(first), int(last or first) + 1):
            assert index < ARRAY, f"{index} is too large for an array"
            (FOLDER / f"{number}_{index}").write_text("")
            _start(number, index, options)
    print(f"{number};cluster")


def _start(job: int, index: int, options: dict[str, str]) -> None:
    # The state of a task is that of its process, or what the file "loses" says of it, once.
    loses = FOLDER / "loses"
    lost, _, state = loses.read_text().partition(" ") if loses.exists() else ("", "", "")
    if lost == str(index):
        loses.unlink()
        (FOLDER / f"{job}_{index}").write_text(state)
        return
    with Path(options["output"].replace("%%", "%").replace("%a", str(index))).open("ab") as output:
        process = subprocess.Popen(
            ["bash", str(FOLDER / f"{job}.sh")], cwd=options["chdir"], stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True, env={**os.environ, "SLURM_ARRAY_TASK_ID": str(index)},
        )  # fmt: skip
    (FOLDER / f"{job}_{index}").write_text(str(process.pid))


def squeue(words: list[str]) -> None:
    """Print array, index and state of each task."""
    (jobs,) = [word.partition("=")[2].split(",") for word in words if word.startswith("--jobs=")]
    for task in sorted(FOLDER.glob("*_*")):
        job, index = task.name.split("_")
        if job in jobs:
            print(job, index, _state(task.read_text()))


def _state(text: str) -> str:
    if not text.isdecimal():
        return text
    running = subprocess.run(["ps", "-o", "stat=", "-p", text], capture_output=True, text=True, check=False).stdout
    return "RUNNING" if running and not running.startswith("Z") else "COMPLETED"


def scancel(words: list[str]) -> None:
    """End the processes of jobs."""
    with (FOLDER / "cancelled").open("a") as file:
        file.write(f"{' '.join(words)}\n")
    for task in FOLDER.glob("*_*"):
        if task.name.split("_")[0] in words and task.read_text().isdecimal():
            with suppress(ProcessLookupError):
                os.killpg(int(task.read_text()), signal.SIGTERM)


def scontrol(words: list[str]) -> None:
    """Print the configuration."""
    print(f"Configuration data as of now\nMaxArraySize            = {ARRAY}\nMaxJobCount = 10000")


if __name__ == "__main__":
    {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "scontrol": scontrol}[Path(sys.argv[0]).name](sys.argv[1:])
