import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from loadtests.hop.cputime import cpu_seconds, resident_mb, tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PARENT = (
    "import subprocess, sys; "
    "child = subprocess.Popen([sys.executable, '-c', 'while True: pass']); child.wait()"
)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_tree_has_the_children_and_their_time_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT]) as parent:
        try:
            wait_for(lambda: len(tree(parent.pid)) == 2)
            pids = tree(parent.pid)
            assert pids[0] == parent.pid
            before = cpu_seconds(pids)
            wait_for(lambda: cpu_seconds(pids) > before + 0.05)
            assert cpu_seconds(pids[1:]) > 0.05
            assert resident_mb(pids) > resident_mb(pids[:1]) > 0
        finally:
            for pid in reversed(tree(parent.pid)):
                subprocess.run(["kill", "-9", str(pid)], check=True)


def test_what_has_ended_counts_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree(process.pid) == [process.pid]
    assert cpu_seconds([process.pid]) == 0
    assert resident_mb([process.pid]) == 0
