"""The gateway's settings: one tree of structs, read from YAML, checked before anything starts.

Durations are in seconds, sizes in bytes, prompt sizes in tokens. An unknown key, a wrong type or a
value out of bounds raises `ConfigError`, which names the place, the value and what is allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from gateway import document
from gateway.allowed import STEP, allowed
from gateway.types import EngineKind, Priority, Role

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
ServicePort = Annotated[int, Meta(ge=1, le=65_535)]
Hold = Annotated[float, Meta(ge=0, le=86_400)]
KubernetesName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
HeaderName = Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]


class ConfigError(ValueError):
    """A setting is wrong. The message names the field, the value and what is allowed.

    Attributes:
        field: the place of the setting, dotted; None when it has none of its own.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every part of the settings."""


class SecretRef(Section, frozen=True):
    """Where a secret is kept: exactly one of the two."""

    env: Annotated[str, Meta(min_length=1)] | None = None
    """Environment variable."""
    file: Annotated[str, Meta(min_length=1)] | None = None
    """File; white space around the secret is not part of it."""

    def __post_init__(self) -> None:
        if (self.env is None) is (self.file is None):
            raise ValueError("a secret is kept in exactly one of env and file")


Secret = Annotated[str, Meta(min_length=1)] | SecretRef
"""A secret itself, or where it is kept. `gateway.secrets.reveal` reads it."""

HASH = r"^sha256:[0-9a-f]{64}$"
Hash = Annotated[str, Meta(pattern=HASH)]
"""As `prefixgate hash-key` prints it."""
HostPort = Annotated[str, Meta(pattern=r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):\d{1,5}$")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


class ServerTls(Section, frozen=True):
    """TLS 1.2 or newer towards clients. Files in PEM; read anew when they change."""

    cert: str
    """The certificate, and those between it and its authority."""
    key: str
    key_password: Secret | None = None
    client_ca: str | None = None
    """Whose certificates clients must have. Without one they need none."""


class BackendTls(Section, frozen=True):
    """Towards an https backend. Files in PEM."""

    ca: str | None = None
    """Whose certificates are believed; those that the system trusts when not given."""
    cert: str | None = None
    """What the gateway shows of itself, with `key`."""
    key: str | None = None
    key_password: Secret | None = None
    server_name: str | None = None
    """The name in the backend's certificate, where it is not the URL's host."""
    insecure: bool = False
    """Believe any certificate. Whoever is on the way can then read and change everything."""

    def __post_init__(self) -> None:
        if (self.cert is None) is not (self.key is None):
            raise ValueError("cert and key are given together or not at all")
        if self.insecure and self.ca is not None:
            raise ValueError("insecure believes any certificate: ca has no use beside it")


ENGINE_CONTROL = (
    *("/abort_request", "/abort_requests", "/inference/*/abort_requests"),
    *("/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused"),
    *("/pause_generation", "/continue_generation", "/pd_role_switch"),
    *("/reset_*_cache", "/flush_cache", "/clear_hicache*", "/hicache/*"),
    *("/release_*", "/resume_*", "/collective_rpc", "/rpc", "/init_*", "/destroy_*"),
    *("/update_*", "/*_weights*", "/weights*", "/set_*", "/scale_elastic_ep", "/fault_tolerance/*"),
    *("/load_*", "/unload_*", "/v1/load_*", "/v1/unload_*", "POST /lora-adapters"),
    *("/start_profile", "/stop_profile", "/start_*", "/stop_*", "/dump_*", "/configure_logging"),
    *("/open_session", "/close_session", "/server_info", "/get_server_info", "/get_internal_state"),
    *("/slots", "/slots/*", "POST /props", "/models/load", "/models/unload", "/kv_cache_events"),
    *("/perf_metrics", "/kv_event_sources", "/freeze_gc", "/slow_down", "/*remote_instance*"),
    *("/metrics", "/metrics/*", "/prometheus/*"),
    *("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/*"),
)
"""Routes by which engines are steered or watched rather than used: no client's business."""


class Server(Section, frozen=True):
    host: str = "127.0.0.1"
    port: Port = 8080
    tls: ServerTls | None = None
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks (CIDR) of the peers whose forwarded headers are believed, and whose
    word on tenant and priority is taken. From all others these headers are replaced."""
    deny_paths: tuple[str, ...] = ENGINE_CONTROL
    """Paths, with * for anything, that are not passed on, whichever way they are spelt; a method
    before the path restricts an entry to it."""
    pass_transfer_fields: bool = False
    """Pass on what tells an engine where to fetch a KV cache from (kv_transfer_params,
    bootstrap_host, disaggregated_params and the like). Where clients are not trusted, these let
    them have engines connect to hosts of their choice."""
    keep_alive: Seconds = 75.0
    """How long an idle client connection is kept; longer than a load balancer's own idle limit."""
    max_connections: Count | None = None
    """Client connections at once; half of what the descriptor limit allows when not given."""
    max_head: Annotated[int, Meta(ge=1024)] = 64 * 1024
    """Request line and headers."""
    max_headers: Count = 128
    max_target: Annotated[int, Meta(ge=64)] = 8 * 1024
    """Path and query string."""
    head_timeout: Seconds = 10.0
    """How long a client may take to send a request's head, from its first byte on."""
    max_body: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    """As sent, and decompressed."""
    max_body_total: Annotated[int, Meta(ge=1024)] = 1024 * 1024 * 1024
    """Bodies of all requests that no backend has taken yet."""
    body_timeout: Seconds = 30.0
    """How long a client may take to send a request's body after its head."""
    write_timeout: Seconds = 60.0
    """How long a client may take nothing of its answer before it is given up."""
    shutdown_delay: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """How long all is served as before after a signal to stop, except that /ready says no: as long
    as load balancers take to notice."""
    drain: Seconds = 60.0
    """How long answers that are under way may take after that. Requests that wait are refused."""
    parser: Literal["httptools", "h11"] = "httptools"
    """h11 is stricter and slower; answers then go through plain ASGI."""
    stream_ping: Seconds | None = None
    """Send a comment into an event stream that has been silent for so long, from the moment its
    backend has it, so that nothing on the way takes it for dead. Clients ignore comments. An error
    that comes after the first one is an event in a stream with status 200."""
    response_headers: bool = True
    """Whether answers carry x-prefixgate-backend, -decision, -matched-tokens and -queue-ms."""
    watch: Seconds | None = None
    """How often the config file is looked at; a change that stays for so long is loaded. null: on
    SIGHUP and through the admin API only."""

    def __post_init__(self) -> None:
        if self.max_body_total < self.max_body:
            raise ValueError(
                f"server: max_body_total must be at least max_body, {self.max_body}, got"
                f" {self.max_body_total}"
            )


class BackendOptions(Section, frozen=True):
    """All that can be said of a backend but where it is."""

    kind: EngineKind | None = None
    """Detected when not given."""
    role: Role = Role.UNIFIED
    """A prefill engine gets whole requests only while no other backend serves the model."""
    models: list[str] | None = None
    """Read from the backend's /v1/models when not given."""
    capacity_tokens: Count | None = None
    """Size of the KV cache; read from the engine when not given."""
    priority: bool = False
    """The engine schedules by priority (vLLM: --scheduling-policy priority, SGLang:
    --enable-priority-scheduling): a priority that a client gave in a header is passed on to it."""
    api_key: Secret | None = None
    """Sent as a bearer token in place of whatever clients show."""
    tls: BackendTls | None = None
    """How an https backend is spoken to; `backend_tls` when not given."""


class KeyLimits(Section, frozen=True):
    """Limits of one API key; null is none. Minutes are whole ones, the first of which begins with
    the first request: around the end of one, twice as much can come within a minute."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Prompt and output tokens of the work that was done."""
    max_concurrent: Count | None = None
    """Requests under way, from their head to the end of their answer."""


class ApiKey(Section, frozen=True):
    """A client's key, by its hash or by where it is kept."""

    name: Name
    hash: Hash | None = None
    key: SecretRef | None = None
    tenant: Annotated[str, Meta(pattern=r"^[!-~]([ -~]{0,198}[!-~])?$")] | None = None
    """Whom its requests count for; the key's name when not given."""
    models: tuple[str, ...] | None = None
    """Models it may use, with * for anything; all when not given. With them, every request must
    name one."""
    max_priority: Priority = Priority.NORMAL
    """The highest priority that its requests can have."""
    names_tenants: bool = False
    """Whether `scheduling.tenants.header` is believed of its requests."""
    limits: KeyLimits = KeyLimits()

    def __post_init__(self) -> None:
        if (self.hash is None) is (self.key is None):
            raise ValueError(f"key {self.name!r} has exactly one of hash and key")


class Auth(Section, frozen=True):
    """API keys. With `enabled`, nothing but liveness and readiness answers without one."""

    enabled: bool = False
    keys: tuple[ApiKey, ...] = ()
    open_metrics: bool = False
    """Whether /metrics answers without a key."""
    pass_credentials: bool = False
    """Send clients' keys and cookies on to backends that have no `api_key`."""

    def __post_init__(self) -> None:
        names = [key.name for key in self.keys]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"keys: the name {min(twice)!r} is given twice")
        if self.keys and not self.enabled:
            raise ValueError("keys are given, but enabled is false: anybody could come in")


class BackendConfig(BackendOptions, frozen=True, kw_only=True):
    url: str

    def __post_init__(self) -> None:
        if self.tls is not None and not self.url.strip().lower().startswith("https:"):
            raise ValueError("tls is given, but the url is not https")


class PolicyConfig(Section, frozen=True):
    name: str = "prefix_affinity"
    params: dict[str, Any] = {}


class ClassLimits(Section, frozen=True):
    """Limits of one class: the first two at each backend, the others for each pool's queue."""

    max_requests: Count = 256
    max_uncached_tokens: Count = 10_000_000
    """Uncached tokens before their first token. One larger request goes when it is alone."""
    max_waiting: Annotated[int, Meta(ge=0)] = 1024
    max_waiting_tokens: Count = 16_000_000
    """Prompt tokens of those that wait."""
    max_waiting_bytes: Count = 256 * 1024 * 1024
    """Bodies of those that wait. One larger request waits when it is alone."""
    max_wait: Seconds = 120.0


class PrefillLimits(ClassLimits, frozen=True):
    max_requests: Count = 64
    max_waiting: Annotated[int, Meta(ge=0)] = 256
    max_wait: Seconds = 600.0


class LengthRange(Section, frozen=True):
    """Limits at each backend for the prompts of at least some length, so that long ones cannot
    fill its KV cache. One of them always goes when it is alone."""

    min_tokens: Count
    max_requests: Count | None = None
    max_cache_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Of the KV cache, by their prompt tokens."""


class Target(Section, frozen=True):
    """When a first token is due, counted from the request's arrival: the later of the two."""

    seconds: Seconds = 2.0
    factor: Annotated[float, Meta(ge=0, le=100)] = 3.0
    """Times the prefill of the whole prompt on an idle backend."""


class PriorityShares(Section, frozen=True):
    """Higher priorities go first; of the releases while they wait, lower ones get at least this
    share each."""

    normal: Share = 0.3
    low: Share = 0.05

    def __post_init__(self) -> None:
        if self.normal + self.low > 1.0:
            raise ValueError(
                f"priorities: normal and low together must leave something to high: at most 1, got"
                f" {self.normal} + {self.low}"
            )


class Tenants(Section, frozen=True):
    """Fairness by seconds of service, in which cached tokens are nearly free."""

    header: HeaderName | None = None
    """Request header that names the tenant, where whoever sends it can be trusted: see
    `server.trusted_proxies` and `auth`. Without one, or when it is missing, the client's API key
    tells tenants apart."""
    quantum: Seconds = 1.0
    """Seconds of service that a tenant may be ahead of the others."""
    weights: dict[str, Annotated[float, Meta(gt=0, le=1000)]] = {}
    """By tenant, as the header or its API key names it; 1 for all others."""
    max_tracked: Count = 4096
    """Tenants whose service is counted; those beyond, least recently seen first, start anew."""


class Scheduling(Section, frozen=True):
    prefill_seconds: Seconds = 0.5
    """From this much prefill at the best backend on, a request is in the prefill class."""
    prefill_share: Share = 0.2
    """Share of the releases that the prefill class gets while both classes wait."""
    gate: Seconds | None = 0.5
    """Prefill pending at a backend from which on its requests are held here, where their order can
    still change. What its KV cache has no room for is held too. null sends everything on at
    once."""
    order: Literal["deadline", "arrival", "work"] = "deadline"
    """Among equals: whose first token is due next, who came first, or who brings the least work."""
    pace: Annotated[float, Meta(gt=0, le=60)] | None = 0.1
    """Seconds per output token that streams are to keep to on average. A prefill is held here while
    it would make streams beside it miss that, for three times its target or half of the time that
    it may wait at most; null sends it on whatever it stalls."""
    pace_tolerance: Annotated[float, Meta(ge=0, le=100)] = 0.05
    """Streams that one prefill may make miss their pace, as an expectation."""
    shed_factor: Annotated[float, Meta(ge=1, le=1000)] | None = None
    """Refuse on arrival what would miss its target by more than this factor. What would wait
    longer than it may is refused on arrival in any case."""
    target: Target = Target()
    priorities: PriorityShares = PriorityShares()
    tenants: Tenants = Tenants()
    max_kv_use: Annotated[float, Meta(gt=0, le=1)] | None = 0.95
    """Share of the KV cache that is in use, as the engine says, from which on a backend gets
    nothing new, whatever the policy. It does not hold where an engine does not say; null has none.
    """
    ranges: tuple[LengthRange, ...] = ()
    prefill: PrefillLimits = PrefillLimits()
    decode: ClassLimits = ClassLimits()


class Index(Section, frozen=True):
    max_blocks: Annotated[int, Meta(ge=1000)] = 2_000_000
    """Bound of the whole index: blocks held, summed over all backends."""
    capacity_tokens: Count = 500_000
    """KV cache size assumed of a backend that does not report its own."""


class Health(Section, frozen=True):
    interval: Seconds = 5.0
    timeout: Seconds = 2.0
    unhealthy_after: Count = 3
    """Probes that failed in a row, which eject a backend."""
    probes: bool = True
    """Whether backends are asked how they are. Without, each must name its models, and requests
    alone show what works."""
    load_interval: Seconds | None = 2.0
    """Between two readings of what an engine says of its load, where it says it. What it runs
    beyond what was sent there counts as load too; what it said five intervals ago does not. null
    asks nobody: backends then go by what was sent there."""


class BreakerConfig(Section, frozen=True):
    """When a backend at which requests fail gets no more of them, and how it is tried again."""

    failures: Count = 5
    """Opens the breaker when they come in a row, or make up the share within the window."""
    window: Seconds = 30.0
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Of the requests in the window."""
    open: Seconds = 5.0
    """How long it stays open before trials; doubled each time they fail, and when it opens again
    within a window of closing."""
    max_open: Seconds = 30.0
    trials: Count = 1
    """Requests at a time while it is to be seen whether the backend serves again."""

    def __post_init__(self) -> None:
        if self.max_open < self.open:
            raise ValueError(
                f"max_open: got {self.max_open}, expected at least open, which is {self.open}"
            )


class Backpressure(Section, frozen=True):
    """A backend that answers 429, 503 or 529 is avoided where others serve the model."""

    avoid: Seconds = 1.0
    """For how long, when it does not say so in Retry-After."""
    max_avoid: Seconds = 10.0
    """However long it says."""
    trials: Count = 8
    """Requests at a time meanwhile, where no other backend serves the model."""


class ModelTimeouts(Section, frozen=True):
    """Limits of one model; what is null is as for all others."""

    connect: Seconds | None = None
    first_byte: Seconds | None = None
    prefill_first_byte: Seconds | None = None
    idle: Seconds | None = None
    total: Seconds | None = None


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


class Timeouts(Section, frozen=True):
    connect: Seconds = 5.0
    first_byte: Seconds = 600.0
    prefill_first_byte: Seconds | None = None
    """The same for requests of the prefill class; null when it is the same."""
    idle: Seconds = 120.0
    """Between two reads of a response."""
    total: Seconds | None = None
    """From a request's arrival to the end of its answer."""
    models: dict[str, ModelTimeouts] = {}
    """By model."""


class Retries(Section, frozen=True):
    """Before the first byte of an answer, on another backend. Never after it."""

    max_retries: Annotated[int, Meta(ge=0, le=10)] = 2
    """Further backends that one request may be sent to."""
    budget: Share = 0.2
    """Retries per request in the long run, over all requests."""
    after_timeout: bool = False
    """Whether a request whose answer did not begin in time is sent to another backend: the first
    one may still be at work on it, and the client waits all over again."""


class AdminRole(StrEnum):
    """What a token of the admin API allows; each allows what those before it do."""

    READ = "read"
    OPERATE = "operate"
    """Drain, flush, change policy and scheduling."""
    ADMIN = "admin"
    """Add and remove backends, and everything else."""


class AdminUser(Section, frozen=True):
    """A holder of a token, by its hash or by where it is kept."""

    name: Name
    role: AdminRole
    hash: Hash | None = None
    token: SecretRef | None = None

    def __post_init__(self) -> None:
        if (self.hash is None) is (self.token is None):
            raise ValueError(f"user {self.name!r} has exactly one of hash and token")


ModelName = Annotated[str, Meta(min_length=1)]


class Stored(Section, frozen=True):
    """Responses that engines keep, which only the backend that made one can find again."""

    max_ids: Count = 65_536
    """Responses whose backend is remembered; the latest ones."""
    ttl: Seconds = 86_400.0


class Admin(Section, frozen=True):
    token: Secret | None = None
    """Bearer token of the admin API, with the role admin. Without a token, here or in `users`, it
    answers loopback clients only."""
    users: tuple[AdminUser, ...] = ()
    listen: HostPort | None = None
    """HOST:PORT of a listener for the admin API and /metrics alone; then the main one has no admin
    API."""
    allow_backends: tuple[str, ...] = ()
    """Which addresses backends may be added at: HOST:PORT, ADDRESS:PORT, NETWORK (CIDR) or
    NETWORK:PORT; * as the port is any, *.DOMAIN any name below it. When empty, all but link-local,
    multicast and metadata addresses, which are allowed by no entry but their own."""


class Log(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    access: str | None = None
    """File for one JSON line a request; "-" is standard output."""
    chains: bool = False
    """Whether these lines have the hashes of the prompts' blocks, which a replay needs. They tell
    which prompts begin alike, and let whoever has a text check whether it was sent."""
    decisions: str | None = None
    """File for one JSON line a routing decision, with every candidate's cost."""


class Settings(Section, frozen=True):
    server: Server = Server()
    backends: list[BackendConfig] = []
    discovery: Discovery = Discovery()
    models: dict[ModelName, Annotated[list[ModelName], Meta(min_length=1)]] = {}
    """Aliases: other names for models that backends list, the preferred ones first. A request is
    sent on with the first of these that its backend serves."""
    policy: PolicyConfig = PolicyConfig()
    scheduling: Scheduling = Scheduling()
    index: Index = Index()
    health: Health = Health()
    breaker: BreakerConfig = BreakerConfig()
    backpressure: Backpressure = Backpressure()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    backend_tls: BackendTls = BackendTls()
    """How https backends are spoken to that have no `tls` of their own."""
    auth: Auth = Auth()
    stored: Stored = Stored()
    admin: Admin = Admin()
    log: Log = Log()


T = TypeVar("T")

_WHERE = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")


def convert(
    data: Any, into: type[T], what: str, line: Callable[[str], int | None] | None = None
) -> T:
    """`data` as `into`, strictly.

    Args:
        what: names the source in error messages ("config.yaml", "body").
        line: of a place in the source, where it has lines.

    Raises:
        ConfigError: with the place, the value found there and what is allowed.
    """
    try:
        return msgspec.convert(data, into)
    except msgspec.ValidationError as error:
        message = str(_with_keys(error, data, into))
        where = _WHERE.search(message)
        place = where["path"] if where else ""
        problem = message[: where.start()] if where else message
        path = place.lstrip(".")
        value = _value_at(data, place)
        shown = f" (got {value!r})" if _showable(path, value) else ""
        unknown = _UNKNOWN.search(problem)
        if unknown or "enum value" in problem:
            problem += f"; {allowed(into, place)}"
        field = f"{path}.{unknown['name']}".lstrip(".") if unknown else path
        where_text = f"{path}: " if path else "top level: " if where else ""
        number = None if line is None else line(field)
        what = what if number is None else f"{what}:{number}"
        raise ConfigError(f"{what}: {where_text}{problem}{shown}", field=field or None) from None


def _with_keys(error: msgspec.ValidationError, data: Any, into: Any) -> Exception:
    """The same error with the keys of mappings, for which msgspec writes `[...]`.

    The key is found by leaving out all others: what is wrong with it stays wrong.
    """
    message = str(error)
    where = _WHERE.search(message)
    before, dots, _ = where["path"].partition("[...]") if where else ("", "", "")
    mapping = _value_at(data, before)
    if not dots or not isinstance(mapping, dict):
        return error
    for key, value in mapping.items():
        try:
            msgspec.convert(_replaced(data, before, {key: value}), into)
        except msgspec.ValidationError as alone:
            text = str(alone).replace(f"`${before}[...]", f"`${before}.{key}", 1)
            if text != str(alone):
                return ValueError(text)
    return error


def _replaced(data: Any, path: str, value: Any) -> Any:
    """A copy with another value at a place."""
    step = STEP.match(path)
    if step is None:
        return value
    name, index = step.groups()
    copy = data.copy()
    key = int(index) if index else name
    copy[key] = _replaced(data[key], path[step.end() :], value)
    return copy


S = TypeVar("S", bound=Section)


def changed(section: S, changes: dict[str, Any]) -> S:
    """A section with some of its settings changed: sections within it are changed likewise, all
    else is replaced.

    Raises:
        ConfigError: a change is not allowed.
    """
    return convert(_merged(section, changes), type(section), "body")


def _merged(section: Section, changes: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(section)
    for name, value in changes.items():
        present = getattr(section, name, None)
        if isinstance(present, Section) and isinstance(value, dict):
            value = _merged(present, value)
        tree[name] = value
    return tree


def _value_at(data: Any, path: str) -> Any:
    for name, index in STEP.findall(path):
        try:
            data = data[int(index)] if index else data[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return data


def _showable(path: str, value: Any) -> bool:
    """Containers say nothing in a message, and secrets must not be in one."""
    secret = re.search(r"(token|key|hash|password|secret|authorization)(\.env|\.file)?$", path)
    return isinstance(value, (str, int, float, bool)) and secret is None


def load(path: Path) -> Settings:
    """Settings from a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something that is not allowed.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(text, Settings, str(path))


def parse(text: bytes, into: type[T], what: str) -> T:
    """YAML text as `into`, strictly.

    Args:
        what: names the source in error messages.

    Raises:
        ConfigError: not YAML, or something in it is not allowed.
    """
    try:
        read = document.read(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}: not valid YAML: {error}") from None
    except document.Unreadable as error:
        place = f"{what}:{error.line}" if error.line else what
        raise ConfigError(f"{place}: {error}") from None
    return convert(_without_nulls(read.data, into) or {}, into, what, read.line)


def _without_nulls(data: Any, into: Any = None) -> Any:
    """A section whose members are all commented out is null in YAML; so is an unset option. What
    may be null stays.

    Args:
        into: the type that the data are for.
    """
    if isinstance(data, dict):
        is_section = isinstance(into, type) and issubclass(into, Section)
        types = {f.name: f.type for f in msgspec.structs.fields(into)} if is_section else {}
        return {
            key: _without_nulls(value, types.get(key))
            for key, value in data.items()
            if value is not None or NoneType in get_args(types.get(key))
        }
    if isinstance(data, list):
        member = next(iter(get_args(into)), None)
        return [_without_nulls(value, member) for value in data]
    return data
