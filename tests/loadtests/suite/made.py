"""Workloads of a few requests, and a store beside them."""

from __future__ import annotations

from loadtests.replay import source
from loadtests.suite.version import Version
from loadtests.suite.workload import Workload

VERSION = Version("1", "code")


def workload(seeds: int = 2) -> Workload:
    made = source.find("gen:agents?rate=1&seconds=30")
    return Workload("agents", [made(seed) for seed in range(1, seeds + 1)])
