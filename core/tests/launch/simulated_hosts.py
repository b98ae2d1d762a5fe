"""Two hosts on one machine: network namespaces with a link between them, for tests of runs on several machines."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

LINK = "link0"
"""The network device that leads to the other host, on both."""
PORT = 29_500
"""A port that is free on both hosts: nothing else runs there."""

# Both hosts resolve both names: each mount namespace has its own /etc/hosts.
_HOLDER = """
import socket, subprocess, sys
socket.sethostname(sys.argv[1])
subprocess.run(["mount", "--bind", sys.argv[2], "/etc/hosts"], check=True)
print(flush=True)
sys.stdin.read()
"""
_NOWHERE = "02:00:00:00:00:99"


def unavailable() -> str | None:
    """Return the reason why :func:`two_hosts` cannot be used here, for ``pytest.mark.skipif``; None if it can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    missing = [tool for tool in ("unshare", "nsenter", "mount", "ip") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (util-linux, iproute2)"
    made = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "ip", "link", "add", LINK, "type", "veth"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return None if made.returncode == 0 else f"no network namespace can be made: {made.stderr.strip()}"


@dataclass
class Host:
    """One of the two hosts: it has its own network and host name, and shares files and cores with the machine."""

    name: str
    address: str
    """Its address on the link."""
    holder: int
    """The process that keeps the namespaces."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, words: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command on this host, with stdout and stderr in ``log``; the pid is that of the command itself.

        It gets one thread and gloo's device; it is killed when the test's process ends.
        """
        settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LINK, "PYTHONUNBUFFERED": "1", **environment}
        with log.open("ab") as file:
            process = subprocess.Popen(
                self._inside(words),
                env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *words: str) -> str:
        """Run a short command on this host and return its output.

        Raises:
            AssertionError: the command failed.
        """
        done = subprocess.run(self._inside(words), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.stderr}"
        return done.stdout

    def processes(self) -> list[int]:
        """Return the ids of all processes on this host, except the holder of its namespaces."""
        namespace, pids = _namespace(self.holder), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.holder and _namespace(int(entry.name)) == namespace:
                pids.append(int(entry.name))
        return pids

    def kill(self) -> None:
        """Kill all processes on this host, as a power cut does."""
        deadline = time.monotonic() + 60
        while pids := self.processes():  # repeat: a process may have started another meanwhile
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.started:
                process.poll()
            assert time.monotonic() < deadline, f"{self.name}: {pids} outlive SIGKILL"
            time.sleep(0.01)

    def _inside(self, words: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.holder), "--net", "--uts", "--mount", f"--wd={Path.cwd()}", *words]


@dataclass(frozen=True)
class Hosts:
    """Two hosts and the link between them."""

    first: Host
    second: Host

    def __iter__(self) -> Iterator[Host]:
        return iter((self.first, self.second))

    def cut(self) -> None:
        """Drop all packets between the hosts without an error, as an unplugged cable does."""
        for host, other in ((self.first, self.second), (self.second, self.first)):
            host.run("ip", "neigh", "replace", other.address, "lladdr", _NOWHERE, "dev", LINK, "nud", "permanent")

    def mend(self) -> None:
        """Undo :meth:`cut`."""
        for host, other in ((self.first, self.second), (self.second, self.first)):
            host.run("ip", "neigh", "del", other.address, "dev", LINK)

    def ranks(self, words: Sequence[str], logs: Path, **environment: str) -> list[subprocess.Popen[bytes]]:
        """Start ``words`` as rank 0 on the first host and as rank 1 on the second, without a launcher.

        The logs are ``rank-0.txt`` and ``rank-1.txt`` in ``logs``.
        """
        return [self.rank(number, words, logs, **environment) for number in range(2)]

    def rank(self, number: int, words: Sequence[str], logs: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start one of the two ranks of :meth:`ranks`."""
        host = (self.first, self.second)[number]
        variables = {
            "RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.first.address, "MASTER_PORT": str(PORT),
        }  # fmt: skip
        return host.start(words, logs / f"rank-{number}.txt", **{**variables, **environment})

    def torchrun(
        self, words: Sequence[str], logs: Path, *options: str, processes: int = 1, **environment: str
    ) -> list[subprocess.Popen[bytes]]:
        """Start ``words`` by torchrun's c10d rendezvous, ``processes`` ranks on each host.

        ``words``: a file, or ``-m`` and a module, with arguments.
        The logs are ``node-0.txt`` and ``node-1.txt`` in ``logs``.
        """
        line = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={processes}",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={self.first.address}:{PORT}", "--rdzv-id=test",
        ]  # fmt: skip
        return [
            host.start([*line, *options, *words], logs / f"node-{number}.txt", **environment)
            for number, host in enumerate(self)
        ]


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two hosts, ``first`` and ``second``, that reach each other over a link; at the end their processes are killed.

    Requires root, or the right to create network namespaces: see :func:`unavailable`. Nothing outside the namespaces
    changes, so that several tests may use this at a time. Nothing is left if the test's process is killed: the kernel
    removes namespaces with the last of their processes.
    """
    with ExitStack() as stack:
        names = {"first": "10.77.0.1", "second": "10.77.0.2"}
        table = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        first, second = (stack.enter_context(_host(name, address, table)) for name, address in names.items())
        first.run("ip", "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", str(second.holder))
        for host in (first, second):
            host.run("ip", "addr", "add", f"{host.address}/24", "dev", LINK)
            host.run("ip", "link", "set", "lo", "up")
            host.run("ip", "link", "set", LINK, "up")
        yield Hosts(first, second)


@contextmanager
def _host(name: str, address: str, table: Path) -> Iterator[Host]:
    holder = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", sys.executable, "-S", "-E", "-c", _HOLDER, name, str(table)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    host = Host(name, address, holder.pid)
    try:
        assert holder.stdout.readline(), f"{name}: no namespace"  # printed once the namespaces exist
        yield host
    finally:
        try:
            host.kill()
        finally:
            holder.kill()
            for process in (*host.started, holder):
                process.wait(60)
            holder.stdin.close()
            holder.stdout.close()


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:  # the process has ended
        return None


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
