from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.config import KubernetesSource, convert
from gateway.fleet.discovery.feed import Listing
from gateway.fleet.discovery.slices import EndpointSlice, SliceSet, listing
from gateway.types import EngineKind, Role
from tests.fleet.discovery.api_server import HTTP_PORT, Json, endpoint

METRICS_PORT = {"name": "metrics", "port": 9000, "protocol": "TCP"}
DNS_PORT = {"name": "dns", "port": 53, "protocol": "UDP"}


def a_slice(
    *endpoints: Json,
    name: str = "vllm-1",
    version: str = "1",
    labels: dict[str, str] | None = None,
    **fields: Any,
) -> EndpointSlice:
    metadata = {"name": name, "resourceVersion": version, "labels": labels}
    return msgspec.convert(
        {"metadata": metadata, "ports": [HTTP_PORT], "endpoints": list(endpoints)} | fields,
        EndpointSlice,
    )


def listed(*slices: EndpointSlice, **settings: Any) -> Listing:
    return listing(slices, convert({"service": "vllm", **settings}, KubernetesSource, "test"))


def urls(found: Listing) -> list[str]:
    return [entry.url for entry in found.entries]


@pytest.mark.parametrize(
    ("conditions", "there"),
    [
        ({"ready": True}, True),
        ({"ready": None}, True),
        ({"serving": True}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": False}, True),
    ],
)
def test_endpoints_that_are_ready(conditions: dict[str, bool | None], there: bool) -> None:
    found = listed(a_slice(endpoint("10.0.0.1", **conditions)))
    assert urls(found) == (["http://10.0.0.1:8000"] if there else [])
    assert found.left_out == ()


def test_an_endpoint_may_be_in_several_slices() -> None:
    """In one of them it may still be what it was."""
    found = listed(
        a_slice(endpoint("10.0.0.1", "1", ready=False), endpoint("10.0.0.2", "2")),
        a_slice(endpoint("10.0.0.1", "1"), endpoint("10.0.0.2", "2"), name="vllm-2"),
    )
    assert sorted(urls(found)) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert found.incarnations == {"http://10.0.0.1:8000": "1", "http://10.0.0.2:8000": "2"}


def test_a_pod_with_two_addresses_is_one_backend() -> None:
    six = a_slice(
        endpoint("fd00::1", "1"), endpoint("fd00::2", "2"), name="vllm-0", addressType="IPv6"
    )
    found = listed(six, a_slice(endpoint("10.0.0.1", "1")))
    assert urls(found) == ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]
    assert urls(listed(six, scheme="https")) == ["https://[fd00::1]:8000", "https://[fd00::2]:8000"]


def test_nulls_are_as_good_as_nothing() -> None:
    found = listed(
        a_slice(endpoints=None, ports=None),
        a_slice({"addresses": None}, {"addresses": ["10.0.0.1"], "conditions": None}, name="b"),
    )
    assert urls(found) == ["http://10.0.0.1:8000"]
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("ports", "wanted", "port"),
    [
        ([HTTP_PORT], None, 8000),
        ([HTTP_PORT, DNS_PORT], None, 8000),
        ([HTTP_PORT, METRICS_PORT], "metrics", 9000),
        ([HTTP_PORT, METRICS_PORT], 9000, 9000),
        ([{"port": 8000}], None, 8000),
        ([HTTP_PORT, HTTP_PORT | {"name": "again"}], None, 8000),
        ([], 8000, 8000),
        (None, 8000, 8000),
        ([HTTP_PORT, METRICS_PORT], None, None),
        ([HTTP_PORT], "grpc", None),
        ([HTTP_PORT], 9000, None),
        ([DNS_PORT], "dns", None),
        ([{"name": "http"}], "http", None),
        ([], None, None),
    ],
)
def test_which_port(ports: list[Json] | None, wanted: int | str | None, port: int | None) -> None:
    found = listed(a_slice(endpoint("10.0.0.1"), ports=ports), port=wanted)
    assert urls(found) == ([f"http://10.0.0.1:{port}"] if port else [])
    assert [f"vllm-1: port {wanted!r}" in each for each in found.left_out] == [True] * (not port)


def test_an_address_that_cannot_be_used_is_left_out() -> None:
    found = listed(a_slice(endpoint("bad host"), endpoint("10.0.0.1"), endpoint("10.0.0.999")))
    assert urls(found) == ["http://10.0.0.1:8000"]
    assert len(found.left_out) == 2
    assert "'http://bad host:8000'" in found.left_out[0]


def test_labels_hold_before_the_template() -> None:
    labels = {
        "prefixgate/role": "decode",
        "prefixgate/model": "llama",
        "prefixgate/capacity-tokens": "5000",
        "app": "vllm",
    }
    template = {"kind": "vllm", "role": "prefill", "priority": True}
    one, two = listed(
        a_slice(endpoint("10.0.0.1"), labels=labels),
        a_slice(endpoint("10.0.0.2"), name="vllm-2"),
        backend=template,
    ).entries
    assert (one.kind, one.role, one.models) == (EngineKind.VLLM, Role.DECODE, ["llama"])
    assert (one.capacity_tokens, one.priority) == (5000, True)
    assert (two.kind, two.role, two.models) == (EngineKind.VLLM, Role.PREFILL, None)


@pytest.mark.parametrize(
    "label",
    [
        ("prefixgate/role", "boss"),
        ("prefixgate/kind", "vlm"),
        ("prefixgate/capacity-tokens", "many"),
        ("prefixgate/capacity-tokens", "0"),
        ("prefixgate/model", ""),
        ("prefixgate/rol", "decode"),
    ],
)
def test_a_label_that_is_wrong_is_left_out_and_said(label: tuple[str, str]) -> None:
    found = listed(a_slice(endpoint("10.0.0.1"), labels=dict([label])), backend={"role": "prefill"})
    [entry] = found.entries
    assert (entry.role, entry.kind, entry.models) == (Role.PREFILL, None, None)
    [said] = found.left_out
    assert label[0] in said


# events


def addresses(slices: SliceSet) -> list[str]:
    return [each.endpoints[0].addresses[0] for each in slices if each.endpoints]


def test_what_is_older_than_what_is_known_changes_nothing() -> None:
    slices = SliceSet([a_slice(endpoint("10.0.0.1"), version="10")])
    slices.put(a_slice(endpoint("10.0.0.2"), version="12"))
    slices.put(a_slice(endpoint("10.0.0.3"), version="11"))
    slices.drop(a_slice(version="11"))
    assert addresses(slices) == ["10.0.0.2"]
    slices.drop(a_slice(version="13"))
    slices.put(a_slice(endpoint("10.0.0.4"), version="12"))
    assert addresses(slices) == []
    slices.put(a_slice(endpoint("10.0.0.5"), version="14"))
    assert addresses(slices) == ["10.0.0.5"]


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    slices = SliceSet([a_slice(endpoint("10.0.0.1"), version="b")])
    slices.put(a_slice(endpoint("10.0.0.2"), version="a"))
    assert addresses(slices) == ["10.0.0.2"]
    slices.drop(a_slice(version=""))
    slices.drop(a_slice(version="", name="never there"))
    assert addresses(slices) == []
