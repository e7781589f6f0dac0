"""Sources of backends beside `backends` and the admin API."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from msgspec import Meta

from gateway.config.backends import BackendOptions
from gateway.config.base import Hold, Seconds, Section, ServicePort

KubernetesName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]


class FileSource(Section, frozen=True, kw_only=True):
    """A file that lists backends as `backends:` does here, read again and again."""

    path: Annotated[str, Meta(min_length=1)]
    interval: Seconds = 2.0
    backend: BackendOptions = BackendOptions()
    """What holds for those whose entry says nothing else."""

    @property
    def name(self) -> str:
        return f"file:{self.path}"


class DnsSource(Section, frozen=True, kw_only=True):
    """A name in the DNS, resolved again and again: a backend for each of its addresses."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    record: Literal["A", "AAAA", "SRV"] = "A"
    port: ServicePort | None = None
    """SRV records bring their own."""
    scheme: Literal["http", "https"] = "http"
    interval: Seconds = 10.0
    timeout: Seconds = 5.0
    hold: Hold = 30.0
    """How long an address that answers no longer have stays listed: some servers give a part of
    many addresses at a time, and a name may have none for a moment."""
    servers: list[str] = []
    """`ip` or `ip:port` of name servers; the system's when there are none."""
    backend: BackendOptions = BackendOptions()

    def __post_init__(self) -> None:
        if (self.port is None) is not (self.record == "SRV"):
            need = "must be left out" if self.record == "SRV" else "must be given"
            raise ValueError(f"port {need} with record {self.record}, got {self.port}")
        for server in self.servers:
            name_server(server)

    @property
    def name(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"dns:{self.record}:{self.host}{port}"


class KubernetesSource(Section, frozen=True, kw_only=True):
    """The ready endpoints of services, as their EndpointSlices have them."""

    service: KubernetesName | None = None
    selector: Annotated[str, Meta(min_length=1)] | None = None
    """Label selector of EndpointSlices; they carry their service's labels."""
    namespace: KubernetesName | None = None
    """The gateway's own when not given."""
    port: ServicePort | Annotated[str, Meta(min_length=1, max_length=63)] | None = None
    """Number, or name in the service; can be left out when there is one."""
    scheme: Literal["http", "https"] = "http"
    api: str | None = None
    """URL of the API server; the cluster's own when not given."""
    credentials: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Directory of the files token, ca.crt and namespace; read anew whenever they are needed."""
    relist: Seconds = 60.0
    """How often the whole list is read, whatever the watch has said."""
    timeout: Seconds = 10.0
    """For the API server's answer to begin, and for a list to come."""
    backend: BackendOptions = BackendOptions()

    def __post_init__(self) -> None:
        if (self.service is None) is (self.selector is None):
            raise ValueError("give either service or selector")
        if self.api is not None and not re.fullmatch(r"https?://[^/@\s?#]+(/[^@\s?#]*)?", self.api):
            raise ValueError("api must be http://host:port or https://host:port, maybe with a path")

    @property
    def name(self) -> str:
        where = f"{self.namespace}/" if self.namespace is not None else ""
        port = "" if self.port is None else f":{self.port}"
        return f"kubernetes:{where}{self.service or self.selector}{port}"


class Discovery(Section, frozen=True):
    """Sources of backends beside `backends` and the admin API."""

    linger: Hold = 30.0
    """How long a backend that no source lists any more is remembered. It gets nothing new; when it
    is listed again it is as it was, with its cached prefixes."""
    file: list[FileSource] = []
    dns: list[DnsSource] = []
    kubernetes: list[KubernetesSource] = []

    @property
    def sources(self) -> list[FileSource | DnsSource | KubernetesSource]:
        return [*self.file, *self.dns, *self.kubernetes]

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"named more than once: {', '.join(sorted(twice))}")


def name_server(text: str) -> tuple[str, int]:
    """IP address and port of a name server.

    Raises:
        ValueError: neither `ip` nor `ip:port`; IPv6 with a port is `[ip]:port`.
    """
    host, port = text, "53"
    bracketed = re.fullmatch(r"\[(?P<host>[^\]]*)\](:(?P<port>\d+))?", text)
    if bracketed:
        host, port = bracketed["host"], bracketed["port"] or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = str(ipaddress.ip_address(host))
        number = int(port)
    except ValueError:
        number = 0
    if not 0 < number < 65_536:
        raise ValueError(f"servers: {text!r} is not an IP address, or one with a port")
    return address, number
