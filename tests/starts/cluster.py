"""A Slurm cluster of two nodes on this machine, with keys, sockets, ports and folders of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
NODES = ("n1", "n2")
CONF = """\
ClusterName=recipe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=3
ReturnToService=2
SlurmdTimeout=20
KillWait=20
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=low Nodes=n1,n2 Default=YES PriorityTier=1 GraceTime=0
PartitionName=graceful Nodes=n1,n2 PriorityTier=1 GraceTime=10
PartitionName=high Nodes=n1,n2 PriorityTier=10
"""
"""cred_expire bounds how long a job that is started again waits; its default is two minutes."""


def missing() -> str:
    """Return the reason why no cluster can run here; empty if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "Slurm's daemons want to run as root on Linux"
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    return f"not installed: {', '.join(absent)} (Debian: slurmctld slurmd munge slurm-client)" if absent else ""


class Cluster:
    """Commands of the running cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = ExitStack()
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, *command: str) -> None:
        """Start a daemon; it ends with the cluster."""
        with (self.folder / f"{name}.out").open("ab") as log:
            null = subprocess.DEVNULL
            process = subprocess.Popen(command, env=self.environment, stdin=null, stdout=log, stderr=log)
        self.daemons[name] = process
        self.stack.callback(_end, process)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self.start(node, "slurmd", "-D", "-N", node)

    def run(self, *words: str, check: bool = True) -> str:
        """Return the output of a command."""
        done = subprocess.run(
            words,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0 or not check, f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def recipe(self, *words: str, check: bool = True) -> str:
        """Return the output of ``recipe``."""
        return self.run(sys.executable, "-m", "recipe_core.cli", *words, check=check)

    def state(self, job: str) -> str:
        """Return the state of a job."""
        return self.run("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}").strip()

    def field(self, job: str, name: str) -> str:
        """Return a field of a job from scontrol; empty if missing."""
        found = re.search(rf"^ *{name}=(.*)$|\b{name}=(\S*)", self.run("scontrol", "show", "job", job), re.MULTILINE)
        return "" if found is None else found[1] or found[2] or ""

    def restarts(self, job: str) -> int:
        """Return the number of restarts of a job."""
        return int(self.field(job, "Restarts"))

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node and everything that its jobs run there, as if its power had failed."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        for process in _processes(self):
            with suppress(OSError):
                if f"SLURMD_NODENAME={node}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    parent = Path("/proc") / (process / "stat").read_text().rpartition(")")[2].split()[1]
                    if (parent / "comm").read_text().strip() == "slurmstepd":
                        os.kill(int(parent.name), signal.SIGKILL)
                    os.kill(int(process.name), signal.SIGKILL)

    def wait(self, ready: Callable[[], object], seconds: float, what: str) -> None:
        """Wait until ``ready()`` is true, at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{self.run('squeue', '--long')}"
            time.sleep(0.3)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start the daemons; at the end, end the jobs and the daemons, each by its process id."""
    host, ports = socket.gethostname(), _free_ports(3)
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, ports=ports))
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    here = Cluster(folder)
    with here.stack:
        names = {"key-file": "munge.key", "socket": "munge.socket", "log-file": "munge.log", "pid-file": "munge.pid"}
        options = [f"--{name}={folder / file}" for name, file in names.items()]
        here.start("munged", "munged", "--foreground", "--force", f"--seed-file={folder / 'munge.seed'}", *options)
        here.wait((folder / "munge.socket").exists, 20, "munge")
        here.start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            (folder / f"spool-{node}").mkdir()
            here.start_node(node)
        here.stack.callback(_end_steps, here)
        here.wait(
            lambda: here.run("sinfo", "-hN", "-p", "low", "-o", "%T", check=False).split() == ["idle"] * 2, 60, "nodes"
        )
        here.stack.callback(_cancel, here)
        yield here


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _cancel(here: Cluster) -> None:
    """Cancel all jobs, and wait for their end."""
    here.run("scancel", "--state=PENDING", "--user=root", check=False)
    here.run("scancel", "--signal=KILL", "--full", "--user=root", check=False)
    here.run("scancel", "--user=root", check=False)
    with suppress(AssertionError):
        here.wait(lambda: not here.run("squeue", "-h", check=False).strip(), 60, "end of the jobs")


def _end_steps(here: Cluster) -> None:
    """Kill the remaining processes of jobs, which have no parent."""
    for process in _processes(here):
        with suppress(OSError):
            os.kill(int(process.name), signal.SIGKILL)


def _processes(here: Cluster) -> Iterator[Path]:
    """Yield the /proc folders of the jobs' processes: their environment names the cluster's configuration."""
    mark = f"SLURM_CONF={here.folder / 'slurm.conf'}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            named = entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0")
            if named and (entry / "comm").read_text().strip() not in ("slurmctld", "slurmd", "munged"):
                yield entry


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
