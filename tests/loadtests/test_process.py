import os
import signal
import sys
import time

import pytest

from loadtests.process import ProcessError, Processes, Service, free_ports

SERVE = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port={})"
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('deaf', flush=True); time.sleep(600)"
)
PARENT = (
    "import subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print(child.pid, flush=True); time.sleep(600)"
)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # a zombie that nobody has waited for is not alive
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_free_ports_differ_and_can_be_bound() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20


def test_a_server_is_waited_for_and_stopped() -> None:
    [port] = free_ports(1)
    with Processes() as processes:
        command = [sys.executable, "-c", SERVE.format(port)]
        service = processes.start("server", command)
        service.wait_ready(port, "/", expect=b"Directory listing")
        with pytest.raises(ProcessError, match="not ready"):
            service.wait_ready(port, "/", expect=b"no such words", seconds=0.1)
        processes.check()
        assert alive(service.process.pid)
    assert service.process.returncode is not None


def test_leaving_by_an_error_stops_all() -> None:
    services: list[Service] = []

    def fail() -> None:
        with Processes() as processes:
            services.extend(processes.start(f"sleeper {n}", SLEEP) for n in range(3))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert [service.process.returncode for service in services] == [-signal.SIGTERM] * 3


def test_children_of_a_process_go_with_it() -> None:
    with Processes() as processes:
        service = processes.start("parent", [sys.executable, "-c", PARENT])
        wait_for(lambda: service.log.read_text().endswith("\n"))
        child = int(service.log.read_text())
        assert alive(child)
    wait_for(lambda: not alive(child))


def test_a_process_that_ignores_the_request_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.process._GRACES", (0.1, 0.1))
    with Processes() as processes:
        service = processes.start("stubborn", [sys.executable, "-c", STUBBORN])
        wait_for(lambda: service.log.read_text() == "deaf\n")
    assert service.process.returncode == -signal.SIGKILL


def test_one_can_be_stopped_before_the_others() -> None:
    with Processes() as processes:
        first, second = (processes.start(name, SLEEP) for name in ("first", "second"))
        processes.stop(first)
        assert first.process.returncode is not None
        processes.check()
        assert second.process.returncode is None


def test_a_process_that_ends_is_told_with_its_last_words() -> None:
    [port] = free_ports(1)
    with Processes() as processes:
        command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
        service = processes.start("engine 1", command)
        with pytest.raises(ProcessError, match=r"engine 1 ended with code 1\n\s+no such model"):
            service.wait_ready(port, "/health")
        with pytest.raises(ProcessError, match="engine 1 ended"):
            processes.check()


def test_a_process_that_never_answers_is_told() -> None:
    [port] = free_ports(1)
    with Processes() as processes:
        service = processes.start("sleeper", SLEEP)
        with pytest.raises(ProcessError, match=r"sleeper is not ready after 0\.1 s"):
            service.wait_ready(port, "/", seconds=0.1)


def test_a_program_that_does_not_exist_is_told() -> None:
    with Processes() as processes, pytest.raises(ProcessError, match="nothing cannot be started"):
        processes.start("nothing", ["/does/not/exist"])
