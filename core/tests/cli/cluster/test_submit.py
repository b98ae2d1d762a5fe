"""recipe submit: the scripts, verbatim and under bash; checks before, and files afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from golden_scripts import ARGUMENTS, Typed, compare

from recipe_core.errors import ExitCode


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("two-nodes.sbatch", ()),
        ("array.sbatch", ("--array", "3", "--check-nodes")),
        ("hostile.sbatch", ("--out", 'it\'s 100%j "of" $run #1')),
    ],
)
def test_the_script_for_slurm_is_as_it_was_read(
    typed: Typed, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    out = () if "--out" in options else ("--out", "runs/big")
    code, text, errors = typed("submit", *ARGUMENTS, "--nodes", "2", "--time", "4:00:00", "--print", *out, *options)
    assert (code, errors) == (0, "")
    compare(text, name, tmp_path)
    assert list(Path().iterdir()) == []  # --print writes nothing
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if shellcheck := shutil.which("shellcheck"):  # the site's own file is not here; quotes are meant
        subprocess.run([shellcheck, "--exclude=SC1091,SC2016", "-"], input=text, text=True, check=True)


def test_a_submitted_job_is_frozen_and_noted_in_its_run_folder(typed: Typed, slurm: Path) -> None:
    code, text, errors = typed("submit", *ARGUMENTS, "--nodes", "2", "--time", "30m", "--out", "run")
    assert (code, errors) == (0, "")
    assert text.startswith("job 41: toy, 2 nodes x 4 processes, 30 minutes\n")
    script = Path("run/launch/run.sbatch").absolute()
    assert (slurm / "lines").read_text() == f"sbatch --parsable {script}\n"
    assert yaml.safe_load(Path("run/job.yaml").read_text())["train"]["global_batch"] == 16
    assert Path("run/logs").is_dir()  # where Slurm writes, or the job fails without a word
    note = json.loads(Path("run/launch/submitted.json").read_text())
    assert (note["launcher"], note["job_id"]) == ("slurm", "41")
    code, text, _ = typed("status", "run")
    assert code == 0
    assert text.startswith("run: waiting: job 41 of slurm\n  step       0 of 8; saved: 0\n")
    code, _, errors = typed("submit", *ARGUMENTS, "--nodes", "2", "--time", "30m", "--out", "run")
    assert code == 2
    assert "job 41 of slurm is waiting for it; `recipe stop run` stops it" in errors


def test_an_array_has_a_folder_and_a_seed_for_each_run(typed: Typed, slurm: Path) -> None:
    assert typed("submit", *ARGUMENTS, "--time", "30m", "--array", "3", "--out", "runs")[0] == 0
    seeds = [yaml.safe_load(Path(f"runs/seed-{i}/job.yaml").read_text())["train"]["seed"] for i in range(3)]
    assert seeds == [1234, 1235, 1236]
    code, text, _ = typed("status", "runs")
    assert code == 0
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("runs")] == [
        "runs/seed-0", "runs/seed-1", "runs/seed-2",
    ]  # fmt: skip
    Path("runs/mine.txt").touch()
    (slurm / "state").write_text("COMPLETED\n")
    code, _, errors = typed("submit", *ARGUMENTS, "--time", "30m", "--array", "3", "--out", "runs")
    assert code == 2
    assert "runs holds mine.txt, and --array wants a folder for its runs alone" in errors


def test_no_run_of_an_array_overwrites_another_run(typed: Typed, slurm: Path) -> None:
    _, text, _ = typed("show", *ARGUMENTS, "train.seed=1235", "data.width=7")
    Path("runs/seed-1").mkdir(parents=True)
    Path("runs/seed-1/job.yaml").write_text(text)
    Path("runs/seed-1/metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    code, _, errors = typed("submit", *ARGUMENTS, "--time", "30m", "--array", "2", "--out", "runs")
    assert code == 2
    assert "runs/seed-1 holds another run: data.width was 7 and is 6" in errors
    assert Path("runs/seed-1/job.yaml").read_text() == text


PBS = """
from dataclasses import dataclass

from recipe_core import Launcher, hookimpl


@dataclass(frozen=True, kw_only=True)
class Pbs:
    queue: str = ""


@hookimpl
def register_launchers():
    code = {name: f"pbs:{name}" for name in ("submit", "state", "stop")}
    yield Launcher(name="pbs", build="pbs:scripts", config=Pbs, summary="PBS", **code)


def scripts(submission, config):
    return {"job.pbs": f"#PBS -q {config.queue} -l select={submission.nodes}\\n"}


def submit(folder, files):
    return f"77.{(folder / files[0]).read_text().split()[2]}"


def state(job_id):
    return "waiting"


def stop(job_id, state):
    print("stopped", job_id, state)
"""


def test_a_plugin_brings_a_launcher(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages" / "pbs.py").write_text(PBS)
    (tmp_path / "packages" / "toy-1.dist-info" / "entry_points.txt").write_text(
        "[recipe.plugins]\ntoy = recipe_core.testing.toy\npbs = pbs\n"
    )
    monkeypatch.setenv("RECIPE_PLUGINS", "toy,pbs")
    Path("site.yaml").write_text("pbs: {queue: long}\n")
    code, text, errors = typed(
        "submit",
        *ARGUMENTS,
        "--to",
        "pbs",
        "--nodes",
        "2",
        "--site",
        "site.yaml",
        "--out",
        "run",
        "--processes-per-node",
        "2",
    )
    assert (code, errors) == (0, "")
    assert text.startswith("job 77.long: toy, 2 nodes")
    assert Path("run/launch/job.pbs").read_text() == "#PBS -q long -l select=2\n"
    assert typed("status", "run")[1].startswith("run: waiting: job 77.long of pbs\n")
    assert typed("stop", "run", "--wait", "0")[1].startswith("stopped 77.long waiting\n")


def test_a_compilation_is_a_job_before_the_run(typed: Typed, slurm: Path) -> None:
    assert typed("submit", *ARGUMENTS, "--time", "30m", "--precompile", "--array", "2", "--out", "run")[0] == 0
    first, second = (slurm / "lines").read_text().splitlines()
    assert first.endswith("run/launch/precompile.sbatch")
    assert second.startswith("sbatch --parsable --dependency=afterok:41 --kill-on-invalid-dep=yes ")
    text = Path("run/launch/precompile.sbatch").read_text()
    assert text.splitlines()[-1].endswith('"${recipe[@]}" precompile "$run/job.yaml" --out "$run"')
    assert "--array" not in text
    assert "/run/seed-0\n" in text


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (("--time", "soon"), "expected a time such as 90m, 4h"),
        ((), "--time: Slurm wants a time limit"),
        (("--time", "1h", "--to", "slrm"), "no launcher named 'slrm'; did you mean 'slurm'?"),
        (("--time", "1h", "--stop-before", "3600"), "--stop-before 3600: the run would stop at once"),
        (("--time", "1h", "--out", "back\\slash"), "Slurm takes no path with a backslash"),
        (("--time", "1h", "--device-memory", "1e-6"), "a device of the target has 1 kB"),
        (("--time", "1h", "--processes-per-node", "3"), "train.global_batch: 16 does not divide by 6"),
        (("--time", "1h", "--site", "none.yaml"), "site profile none.yaml: cannot be read"),
        (("--to", "sky", "--array", "2"), "submit each seed by itself"),
        (("--to", "sky", "--check-nodes"), "--check-nodes: --to sky does not start one process on each node"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    typed: Typed, slurm: Path, options: tuple[str, ...], arguments: str
) -> None:
    code, _, errors = typed("submit", *ARGUMENTS, *options)
    assert code == 2
    assert arguments in errors
    assert (slurm / "lines").read_text() == ""
    assert [path for path in Path().iterdir() if path.name != "runs"] == []


@pytest.mark.parametrize("text", [b"a: \0", b"- " * 100_000, b"a: 2020-99-99", b"\xff"])
def test_a_site_profile_that_is_no_yaml(typed: Typed, text: bytes) -> None:
    Path("site.yaml").write_bytes(text)
    code, _, errors = typed("submit", *ARGUMENTS, "--time", "1h", "--site", "site.yaml")
    assert (code, "site profile site.yaml: is not YAML (" in errors) == (2, True)


def test_every_key_of_a_site_profile_is_checked_at_once(typed: Typed) -> None:
    Path("site.yaml").write_text(
        "devices_per_nod: 4\ndisk_gb: -1\nslurm: {partitio: x, gpu_type: h, gpus_per_process: 0}\nk8s: 3\n"
    )
    code, _, errors = typed("submit", *ARGUMENTS, "--time", "1h", "--site", "site.yaml")
    assert code == 2
    assert errors.count("site profile site.yaml: ") == 5
    assert "devices_per_nod: no such setting; did you mean 'devices_per_node'?" in errors
    assert "slurm.partitio: no such setting; did you mean 'partition'?" in errors
    assert "k8s: expected settings ({name: value}), got 3" in errors
    assert "slurm.gpu_type: it says which GPUs, and gpus_per_process is 0" in errors


def test_a_machine_without_slurm_says_so_and_leaves_the_script(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, errors = typed("submit", *ARGUMENTS, "--time", "1h", "--out", "run")
    assert code == 2
    assert (
        "sbatch is not on the path: this machine is no login node of a Slurm cluster; submit it there: sbatch" in errors
    )
    assert Path("run/launch/run.sbatch").exists()


def test_the_time_to_stop_before_the_limit_follows_from_an_earlier_run(typed: Typed) -> None:
    def stop_seconds(minutes: str) -> str:
        text = typed("submit", *ARGUMENTS, "--time", minutes, "--print", "--out", "run")[1]
        return next(line for line in text.splitlines() if "--signal" in line).partition("@")[2]

    # nothing measured; never more than half of the limit
    assert (stop_seconds("1h"), stop_seconds("4m")) == (
        "300",
        "120",
    )
    _, text, _ = typed("show", *ARGUMENTS)
    checkpoint = Path("run/checkpoints/step-2")
    checkpoint.mkdir(parents=True)
    Path("run/job.yaml").write_text(text)
    rows = [{"step": 1, "seconds": 400.0}, {"step": 2, "seconds": 2.5}]
    Path("run/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, when in (("a", 1_000_000), ("b", 1_000_040)):
        (checkpoint / name).touch()
        os.utime(checkpoint / name, (when, when))
    assert stop_seconds("10h") == str(90 + 2 * (400 + 40))


class Batch:
    """A batch script under bash, with imitations of Slurm's commands and of ``recipe``."""

    def __init__(self, typed: Typed, program: Callable[[Path, str, str], None], folder: Path, *more: str) -> None:
        bin_, run = folder / "bin", folder / "run"
        again = 'echo "told $7"; [ "$7" -eq 75 ] || [ "$7" -gt 128 ]'  # status RUN --again --since TIME --code N
        status = f'if [ "$3" = --again ]; then {again}; else cat {folder}/step; fi'
        program(bin_, "recipe", f'if [ "$1" = status ]; then {status}; else eval "$(cat {folder}/act)"; fi')
        program(bin_, "srun", 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"')
        program(bin_, "squeue", f"cat {folder}/state")
        (folder / "state").write_text("RUNNING\n")
        requeue = f'echo "$@" >> {folder}/requeued; kill -KILL $PPID'
        program(bin_, "scontrol", f'if [ "$1" = requeue ]; then {requeue}; else echo "$@" >> {folder}/comment; fi')
        (folder / "site.yaml").write_text(f"program: {bin_}/recipe\n")
        arguments = (
            "submit",
            *ARGUMENTS,
            "--time",
            "1h",
            "--print",
            "--out",
            str(run),
            "--site",
            str(folder / "site.yaml"),
        )
        self.folder, self.text = folder, typed(*arguments, *more)[1]
        self.environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}

    def start(self, act: str, step: int = 0) -> tuple[int, bool]:
        """Run the script; return its exit code, and True if it requeued the job."""
        (self.folder / "act").write_text(act)
        (self.folder / "step").write_text(str(step)) if step >= 0 else None
        (self.folder / "requeued").unlink(missing_ok=True)
        code = subprocess.run(
            ["bash"], input=self.text, text=True, env=self.environment, timeout=60, check=False
        ).returncode
        return code, (self.folder / "requeued").exists()


@pytest.fixture
def batch(typed: Typed, program: Callable[[Path, str, str], None], tmp_path: Path) -> Batch:
    return Batch(typed, program, tmp_path)


def test_the_script_ends_with_the_code_of_the_ranks(batch: Batch) -> None:
    assert batch.start("exit 0") == (0, False)
    assert batch.start("exit 70") == (70, False)
    assert (batch.folder / "comment").read_text() == "update JobId=7 Comment=told 70\n"


def test_the_nodes_are_looked_at_before_the_run(
    typed: Typed, program: Callable[[Path, str, str], None], tmp_path: Path
) -> None:
    batch = Batch(typed, program, tmp_path, "--check-nodes")
    lines = tmp_path / "lines"
    assert batch.start(f'echo "$@" >> {lines}; [ "$1" = run ] || exit 2') == (2, False)
    run = batch.folder / "run"
    check = f"check {run}/job.yaml --on-nodes --processes-per-node 1 --out {run}\n"
    assert lines.read_text() == check
    assert (batch.folder / "comment").read_text() == "update JobId=7 Comment=told 2\n"
    assert batch.start(f'echo "$@" >> {lines}') == (0, False)
    assert lines.read_text() == f"{check}{check}run {run}/job.yaml --out {run}\n"


def test_a_stopped_run_is_started_again_while_it_saves_something_new(batch: Batch) -> None:
    for step in (1, 2, 3):
        assert batch.start(f"echo {step} > {batch.folder}/step; exit 75", step - 1) == (-9, True)
    assert batch.start("exit 137", 3) == (-9, True)  # one start that saved nothing may be bad luck
    assert batch.start("exit 75", 3) == (1, False)  # two are not


def test_starts_that_were_killed_count_too(batch: Batch) -> None:
    assert batch.start("kill -KILL $PPID") == (-9, False)  # preempted without grace, say: Slurm starts it again
    assert batch.start("kill -KILL $PPID") == (-9, False)
    assert batch.start(f"touch {batch.folder}/ran") == (1, False)
    assert not (batch.folder / "ran").exists()


def test_a_job_that_was_told_to_stop_is_not_started_again(batch: Batch) -> None:
    stop = batch.folder / "run" / "launch" / "stop-7"
    assert batch.start(f"touch {stop}; exit 75") == (75, False)
    assert batch.start(f"touch {batch.folder}/ran") == (0, False)
    assert not (batch.folder / "ran").exists()


def test_a_job_that_was_cancelled_is_not_started_again(batch: Batch) -> None:
    (batch.folder / "state").write_text("COMPLETING\n")
    assert batch.start(f"echo 1 > {batch.folder}/step; exit 75") == (75, False)


def test_the_script_outlives_the_signals_that_stop_the_ranks(batch: Batch) -> None:
    step = f"echo 1 > {batch.folder}/step"
    assert batch.start(f"kill -TERM $PPID; kill -USR1 $PPID; sleep 0.3; {step}; exit 75") == (-9, True)


def test_a_rank_that_hangs_is_killed_soon_after_the_verdict(
    batch: Batch, program: Callable[[Path, str, str], None]
) -> None:
    """Slurm would wait for it for longer than train.timeout."""
    folder = batch.folder
    program(folder / "bin", "sleep", "exit 0")
    program(folder / "bin", "scancel", f'echo "$@" > {folder}/killed.new; mv {folder}/killed.new {folder}/killed')
    steps = 'printf "7.batch\\n7.0\\n"'
    program(folder / "bin", "squeue", f'if [ "$1" = --steps ]; then {steps}; else cat {folder}/state; fi')
    verdict = folder / "run" / "launch" / "verdict"
    verdict.parent.mkdir(parents=True)
    verdict.write_text("of an earlier start")
    os.utime(verdict, (1, 1))
    hang = f"while [ ! -e {folder}/killed ]; do $(which -a sleep | tail -n 1) 0.05; done; exit 69"
    assert batch.start(f"[ ! -e {folder}/killed ]; touch {verdict}; {hang}", 1) == (69, False)
    assert (folder / "killed").read_text() == "--signal=KILL 7.0\n"


@pytest.mark.parametrize(
    ("why", "before", "excluded"),
    [
        ("lost: rank 1 on n2: is gone (in 'loader')", "", "n2"),
        ("hung: rank 12 on n2.site: x", "n[5-6]", "n[5-6],n2.site"),
        ("stopped: rank 1 on n2: x", "", None),
        ("lost: the network is cut: rank 1 on n2: x", "", None),
    ],
)
def test_a_job_is_started_again_without_the_node_that_failed(
    typed: Typed, batch: Batch, program: Callable[[Path, str, str], None], why: str, before: str, excluded: str | None
) -> None:
    folder = batch.folder
    bin_ = folder / "bin"
    site = folder / "site.yaml"
    site.write_text(f"program: {bin_}/recipe\nslurm: {{exclude_failing: true}}\n")
    arguments = ("--print", "--out", str(folder / "run"), "--site", str(site))
    batch.text = typed("submit", *ARGUMENTS, "--time", "1h", *arguments)[1]
    status = f'if [ "$3" = --again ]; then echo "{why}"; else cat {folder}/step; fi'
    program(bin_, "recipe", f'if [ "$1" = status ]; then {status}; else exit 137; fi')
    program(bin_, "squeue", f'if [ "$2" = --format=%x ]; then echo "{before}"; else echo RUNNING; fi')
    program(bin_, "scontrol", f'echo "$@" >> {folder}/requeued')
    program(bin_, "sleep", "exit 0")
    assert batch.start("", 1) == (137, True)
    assert (folder / "requeued").read_text().splitlines() == [
        f"update JobId=7 Comment={why}", "requeue 7", *[f"update JobId=7 ExcNodeList={excluded}"] * bool(excluded)
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_ranks_of_a_script_get_its_variables_and_keep_their_own(typed: Typed, batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(
        f'program: {tmp_path}/bin/recipe\nenvironment: {{MINE: ours, OTHER: "it\'s $HOME"}}\n'
    )
    arguments = ("--print", "--out", str(tmp_path / "run"), "--site", str(tmp_path / "site.yaml"))
    batch.text = typed("submit", *ARGUMENTS, "--time", "1h", *arguments)[1]
    batch.environment |= {"MINE": "mine", "SLURM_CPUS_PER_TASK": "3"}
    batch.environment.pop("OMP_NUM_THREADS", None)
    assert batch.start(f'echo "$MINE $OTHER $OMP_NUM_THREADS" > {tmp_path}/seen') == (0, False)
    assert (tmp_path / "seen").read_text() == "mine it's $HOME 3\n"


def test_check_for_a_target_says_what_fits_there(typed: Typed) -> None:
    code, text, _ = typed("check", *ARGUMENTS, "--nodes", "2")
    assert code == 0
    assert text.startswith("toy on 8 processes, 4 on each of 2 nodes: no problem found\n")
    assert "    one device has         80 GB\n" in text
    assert "the target's disk is not known\n" in text
    code, text, errors = typed("check", *ARGUMENTS, "--nodes", "2", "--device-memory", "1e-6")
    assert code == 2
    assert "one device has          1 kB  it will not fit" in text
    assert errors.startswith("recipe check: memory: one process needs ")
    Path("site.yaml").write_text("disk_gb: 1e-7\nnode_memory_gb: 1e-6\n")
    code, text, errors = typed(
        "check", *ARGUMENTS, "train.device=cpu", "--processes-per-node", "4", "--site", "site.yaml"
    )
    assert code == 2
    assert "memory: the 4 processes of a node need" in errors
    assert "100 B are free on the target; lower train.keep" in errors
    assert typed("check", *ARGUMENTS, "--nodes", "2", "--processes", "4")[0] == 2


def test_what_only_this_machine_cannot_hold_is_a_note(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("cli.show", "train.start.check.parts"):
        monkeypatch.setattr(f"recipe_core.{place}.free_space", lambda folder: 100)
    code, text, _ = typed("check", *ARGUMENTS)
    assert code == 0
    assert "100 B are free for runs/  it will not fit" in text
    code, text, _ = typed("check", *ARGUMENTS, "--nodes", "2")
    assert code == 0
    assert "100 B" not in text
    assert typed("run", *ARGUMENTS)[0] == ExitCode.DISK_FULL  # which is for this machine
