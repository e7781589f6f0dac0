from __future__ import annotations

from dataclasses import dataclass

import pytest

from loadtests.replay.jobs import run


@dataclass(frozen=True)
class Square:
    number: int

    def __call__(self) -> int:
        if self.number < 0:
            raise ValueError("negative")
        return self.number**2


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_jobs(processes: int) -> None:
    assert run([Square(n) for n in range(20)], processes, "squares") == [n * n for n in range(20)]
    assert run([], processes, "nothing") == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_job_that_fails_ends_all(processes: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        run([Square(1), Square(-1)], processes, "squares")
