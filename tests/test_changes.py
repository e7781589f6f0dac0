from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.changes import WHOLE, changes, taken_over
from gateway.config import (
    BackendConfig,
    BackendTls,
    Disagg,
    PolicyConfig,
    Redis,
    Replication,
    Scheduling,
    Server,
    ServerTls,
    Settings,
    changed,
)

BEFORE = Settings()


def test_changes_are_named_to_the_last_option() -> None:
    after = changed(
        BEFORE,
        {
            "server": {"port": 1},
            "scheduling": {"prefill": {"max_wait": 1.0}, "tenants": {"weights": {"a": 2.0}}},
        },
    )
    assert changes(BEFORE, after) == [
        "server.port",
        "scheduling.tenants.weights",
        "scheduling.prefill.max_wait",
    ]
    assert changes(after, after) == []


@pytest.mark.parametrize("section", sorted(WHOLE))
def test_some_sections_change_as_one(section: str) -> None:
    tls = ServerTls(cert="a", key="b")
    before = Settings(server=Server(tls=tls))
    after = Settings(
        server=Server(tls=replace(tls, cert="c")),
        backends=[BackendConfig(url="http://a")],
        policy=PolicyConfig(params={"omega": 0.5}),
        backend_tls=BackendTls(insecure=True),
        disagg=Disagg(bandwidth=25.0),
        redis=Redis(url="redis://a"),
        replication=Replication(lease=1.0),
    )
    assert section in changes(before, after)


def test_only_what_is_named_is_taken_over() -> None:
    now = changed(BEFORE, {"scheduling": {"gate": 9.0, "decode": {"max_wait": 9.0}}})
    other = changed(BEFORE, {"scheduling": {"gate": 1.0, "decode": {"max_waiting": 1}}})
    after = taken_over(now, other, changes(BEFORE, other)).scheduling
    assert (after.gate, after.decode.max_wait, after.decode.max_waiting) == (1.0, 9.0, 1)


def test_what_does_not_go_together_is_refused() -> None:
    now = changed(Scheduling(), {"priorities": {"normal": 0.9}})
    other = changed(Scheduling(), {"priorities": {"low": 0.5}})
    with pytest.raises(ValueError, match="priorities: normal and low together"):
        taken_over(now, other, ["priorities.low"])
