"""V01: no client says where engines fetch from, whichever way it spells that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.disagg.bodies import TRANSFER_FIELDS
from gateway.disagg.connector import Connector
from gateway.disagg.route import Route
from gateway.http.dialects.transfer import Transfers, transfer_in
from tests.disagg.legs import CARRIED, body_of, legs, name, read

TRAP = "trap.test"
GIVEN: Any = {"remote_host": TRAP, "do_remote_prefill": True}


def hidden(field: str) -> list[bytes]:
    """Members that have it, to be put into a body."""
    inner = json.dumps({field: GIVEN, "kept": 1})
    plain = f'"{field}":{json.dumps(GIVEN)}'
    escaped = f'"\\u{ord(field[0]):04x}{field[1:]}":"{TRAP}"'
    return [
        member.encode()
        for member in (
            plain,
            f"{plain},{plain}",
            escaped,
            f"{plain},{escaped}",
            f'"{field}":null,{plain}',
            f'"vllm_xargs":{inner}',
            f'"vllm_xargs":{{}},"vllm_xargs":{inner}',
            f'"sampling_params":{{"extra_args":{inner}}}',
            f'"sampling_params":{{"temperature":0.5,"extra_args":{inner}}}',
            f'"extra_args":{inner}',
        )
    ]


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
@pytest.mark.parametrize("field", sorted(TRANSFER_FIELDS))
def test_V01_no_leg_has_what_a_client_gave(connector: Connector, route: Route, field: str) -> None:
    for members in hidden(field):
        body = body_of(route)[:-1] + b"," + members + b"}"
        for leg in legs(connector, route, body):
            assert TRAP.encode() not in leg.body, members
            sent = read(leg.body)
            assert ("kept" in json.dumps(sent)) is (b"kept" in body)
            found = transfer_in(Transfers(**{key: sent.get(key) for key in FIELDS}))
            ours = {"kv_transfer_params", "disaggregated_params", "bootstrap_host", ""}
            assert found in ours


FIELDS = Transfers.__struct_fields__


def test_V01_the_fields_are_those_that_clients_may_not_send() -> None:
    assert {*FIELDS} - {"vllm_xargs", "sampling_params", "parameters"} == TRANSFER_FIELDS


@pytest.mark.parametrize(("connector", "route"), CARRIED, ids=name)
def test_V01_what_is_harmless_in_the_same_places_stays(connector: Connector, route: Route) -> None:
    members = {"vllm_xargs": {"a": [1.5]}, "sampling_params": {"extra_args": {"b": None}}}
    for leg in legs(connector, route, body_of(route, **members)):
        sent = read(leg.body)
        assert sent["vllm_xargs"] == members["vllm_xargs"]
        assert sent["sampling_params"]["extra_args"] == {"b": None}
