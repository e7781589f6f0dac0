"""How clients are listened to, and what they may send."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.config.base import Count, Port, Seconds, Section
from gateway.config.tls import ServerTls

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
