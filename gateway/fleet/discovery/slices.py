"""Kubernetes EndpointSlices, and what they say of backends. No I/O.

Shapes: Kubernetes API, discovery.k8s.io/v1. What is not used here is not read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from gateway.config import BackendConfig, BackendOptions, ConfigError, KubernetesSource, convert
from gateway.fleet.address import Address
from gateway.fleet.discovery.feed import Listing, at
from gateway.fleet.listing import completed

PREFIX = "prefixgate/"
LABELS = {
    "prefixgate/kind": "kind",
    "prefixgate/role": "role",
    "prefixgate/model": "models",
    "prefixgate/capacity-tokens": "capacity_tokens",
}
"""Labels of a service that say something of its backends, with the setting that each stands for."""


class Wire(msgspec.Struct, rename="camel", frozen=True):
    """Null is as good as absent: the API server sends either."""


class Metadata(Wire, frozen=True):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class Conditions(Wire, frozen=True):
    ready: bool | None = None
    """Not while it terminates. None is to be taken for true."""


class Target(Wire, frozen=True):
    uid: str = ""


class Endpoint(Wire, frozen=True):
    addresses: list[str] | None = None
    conditions: Conditions | None = None
    target_ref: Target | None = None

    @property
    def ready(self) -> bool:
        return self.conditions is None or self.conditions.ready is not False

    @property
    def uid(self) -> str:
        return self.target_ref.uid if self.target_ref is not None else ""


class SlicePort(Wire, frozen=True):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Wire, frozen=True):
    metadata: Metadata = Metadata()
    address_type: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[SlicePort] | None = None


class ListMetadata(Wire, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class SliceList(Wire, frozen=True):
    metadata: ListMetadata
    items: list[EndpointSlice] | None = None


class Event(Wire, frozen=True):
    type: str
    object: msgspec.Raw


class Status(Wire, frozen=True):
    code: int = 0
    message: str = ""


class SliceSet:
    """The slices of a selection, by name, as a list and the events after it have them.

    Events may come late or twice: what is older than what is known, or was deleted since, changes
    nothing. A list replaces everything.
    """

    def __init__(self, slices: Iterable[EndpointSlice]) -> None:
        self._slices = {each.metadata.name: each for each in slices}
        self._deleted: dict[str, int] = {}

    def __iter__(self) -> Iterator[EndpointSlice]:
        return iter(self._slices.values())

    def put(self, found: EndpointSlice) -> None:
        """It was added or modified."""
        if not self._is_old(found):
            self._slices[found.metadata.name] = found

    def drop(self, found: EndpointSlice) -> None:
        """It was deleted."""
        if not self._is_old(found):
            self._slices.pop(found.metadata.name, None)
            self._deleted[found.metadata.name] = version(found)

    def _is_old(self, found: EndpointSlice) -> bool:
        name = found.metadata.name
        known = self._slices.get(name)
        newest = max(self._deleted.get(name, 0), version(known) if known is not None else 0)
        return 0 < version(found) < newest


def version(found: EndpointSlice) -> int:
    """Resource versions of one kind can be compared as numbers; 0 for one that is none."""
    text = found.metadata.resource_version
    return int(text) if text.isdecimal() else 0


def listing(slices: Iterable[EndpointSlice], settings: KubernetesSource) -> Listing:
    """The ready endpoints of some slices.

    An endpoint may be in several slices for a while, and a pod in one of each address family: then
    its IPv4 address is taken.
    """
    entries: dict[str, BackendConfig] = {}
    uids: dict[str, str] = {}
    left_out: list[str] = []
    reached: set[str] = set()
    for each in sorted(slices, key=lambda each: (each.address_type != "IPv4", each.metadata.name)):
        options = _options(each, settings.backend, left_out)
        try:
            port = _port(each, settings.port)
        except ConfigError as error:
            left_out.append(str(error))
            continue
        if port is None:
            continue
        met = set()
        for endpoint in each.endpoints or ():
            if not endpoint.ready or not endpoint.addresses or endpoint.uid in reached:
                continue
            host = endpoint.addresses[0]
            name = f"[{host}]" if ":" in host else host
            url = f"{settings.scheme}://{name}:{port}"
            if not _is_ip(host):
                try:
                    Address.parse(url)
                except ConfigError as error:
                    left_out.append(f"slice {each.metadata.name}: {error}")
                    continue
            if url not in entries:
                entries[url] = at(url, options)
            if endpoint.uid:
                uids[url] = endpoint.uid
                met.add(endpoint.uid)
        if each.address_type == "IPv4":
            reached |= met
    return Listing(tuple(entries.values()), uids, tuple(left_out))


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # no zone


def _port(each: EndpointSlice, wanted: int | str | None) -> int | None:
    """None where a slice has no endpoints whose port would matter.

    Raises:
        ConfigError: it cannot be told which port is meant.
    """
    if not each.endpoints:
        return None
    ports = [port for port in each.ports or () if port.protocol in (None, "", "TCP")]
    if isinstance(wanted, int) and not ports:  # no ports at all stand for all ports
        return wanted
    found = {port.port for port in ports if wanted in (None, port.name, port.port)} - {None}
    if len(found) == 1:
        return found.pop()
    names = ", ".join(f"{port.name or '(unnamed)'} {port.port}" for port in ports) or "none"
    raise ConfigError(
        f"slice {each.metadata.name}: port {wanted!r} is not one of its ports, or not a single one:"
        f" it has {names}"
    )


def _options(each: EndpointSlice, template: BackendOptions, left_out: list[str]) -> BackendOptions:
    """What a slice's labels say, and the template where they say nothing."""
    options = BackendOptions()
    for label, text in (each.metadata.labels or {}).items():
        if label.startswith(PREFIX):
            try:
                options = completed(options, _told(label, text))
            except ConfigError as error:
                left_out.append(f"slice {each.metadata.name}: {error}")
    return completed(options, template)


def _told(label: str, text: str) -> BackendOptions:
    """Raises:
    ConfigError: there is no such label, or its value is wrong.
    """
    name = LABELS.get(label)
    if name is None:
        raise ConfigError(f"label {label}: is none of {', '.join(LABELS)}")
    if not text:
        raise ConfigError(f"label {label}: is empty")
    value: Any = [text] if name == "models" else text
    if name == "capacity_tokens" and text.isdecimal():
        value = int(text)
    return convert({name: value}, BackendOptions, f"label {label}")
