"""The two simulated hosts for tests of several machines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from simulated_hosts import Host, Hosts, two_hosts, unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")

SERVE = """
import socket
with socket.create_server(("10.77.0.1", 7000)) as server:
    print("ready", flush=True)
    while True:
        server.accept()[0].sendall(socket.gethostname().encode())
"""
CALL = """
import socket, sys
try:
    with socket.create_connection(("first", 7000), timeout=float(sys.argv[1])) as line:
        print(line.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""


def serve(host: Host, log: Path) -> subprocess.Popen[bytes]:
    process = host.start([sys.executable, "-c", SERVE], log)
    wait_until_ready(process, log)
    return process


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while "ready" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def call(hosts: Hosts, seconds: float = 60) -> str:
    """Return the answer of the server on the first host to the second, or the error, within ``seconds``."""
    return hosts.second.run(sys.executable, "-c", CALL, str(seconds)).strip()


def test_a_link_that_is_cut_and_mended(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        server = serve(hosts.first, tmp_path / "log")
        assert server.pid in hosts.first.processes()
        assert server.pid not in hosts.second.processes()
        assert call(hosts) == "first"  # under its name, and by its name
        hosts.cut()
        assert call(hosts, seconds=0.5) == "TimeoutError"  # silence: no host says that it cannot be reached
        hosts.mend()
        assert call(hosts) == "first"
        hosts.first.kill()
        assert server.poll() == -9
        assert call(hosts) == "ConnectionRefusedError"


def test_nothing_outlives_a_test_that_failed(tmp_path: Path) -> None:
    nested = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {SERVE!r}], start_new_session=True).wait()
"""
    processes: list[int] = []

    def fail() -> None:
        with two_hosts() as hosts:
            for host, code in ((hosts.second, "print('ready'); import time; time.sleep(600)"), (hosts.first, nested)):
                wait_until_ready(host.start([sys.executable, "-c", code], tmp_path / host.name), tmp_path / host.name)
            for host in hosts:
                processes.extend([*host.processes(), host.holder])
            raise RuntimeError("the test failed")

    with pytest.raises(RuntimeError, match="the test failed"):
        fail()
    assert len(processes) == 5  # two holders, and the three that sleep, serve, and wait for the one that serves
    assert not [pid for pid in processes if alive(pid)]


def alive(pid: int) -> bool:
    """Return False also for a zombie, which waits for the machine's first process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_two_pairs_of_hosts_at_a_time(tmp_path: Path) -> None:
    with two_hosts() as hosts, two_hosts() as others:
        serve(hosts.first, tmp_path / "log")
        assert call(hosts) == "first"
        assert call(others) == "ConnectionRefusedError"
    assert os.uname().nodename not in ("first", "second")
