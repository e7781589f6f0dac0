from __future__ import annotations

import pytest

from gateway.shared.address import Address
from gateway.shared.records import Refused
from gateway.shared.replies import away, passing, redirect

HERE = Address("here", 1)


@pytest.mark.parametrize(
    "text",
    [
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN Hash slot not served",
        "MISCONF Redis is configured to save RDB snapshots, but ...",
        "NOREPLICAS Not enough good replicas to write.",
        "BUSY Redis is busy running a script.",
        "NOAUTH Authentication required.",
        "ERR max number of clients reached",
        "ERR Error running script (call to f_0): @user_script:1: -READONLY You can't write",
    ],
)
def test_Z01_states_in_which_nothing_is_worth_sending(text: str) -> None:
    assert away(Refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR unknown command 'X'",
        "ERR value -READONLYISH",
        "NOPERM this user has no permissions to run the 'eval' command",
        "NOSCRIPT No matching script.",
    ],
)
def test_what_is_wrong_with_one_command_only(text: str) -> None:
    assert away(Refused(text)) is None


def test_what_ends_by_itself() -> None:
    for text in ("TRYAGAIN Multiple keys", "ASK 1 a:1", "MOVED 1 a:1"):
        assert passing(Refused(text))
    assert not passing(Refused("WRONGTYPE ASK 1 a:1"))


def test_redirections() -> None:
    assert redirect(Refused("MOVED 1 a.test:7"), HERE) == ("MOVED", Address("a.test", 7))
    assert redirect(Refused("ASK 1 [::1]:7"), HERE) == ("ASK", Address("::1", 7))
    assert redirect(Refused("MOVED 1 ::1:7"), HERE) == ("MOVED", Address("::1", 7))
    assert redirect(Refused("MOVED 1 :7"), HERE) == ("MOVED", Address("here", 7))
    assert redirect(Refused("ERR MOVED x"), HERE) is None
