from __future__ import annotations

import pytest

from gateway.config import ENGINE_CONTROL, ConfigError
from gateway.http.dialects.registry import KNOWN
from gateway.http.paths import DeniedPaths, normalised

DENIED = DeniedPaths(ENGINE_CONTROL)


@pytest.mark.parametrize(
    "path",
    [
        *("/sleep", "//sleep", "/sleep/", "/SLEEP", "/%73leep", "/%2573leep", "/./sleep"),
        *(
            "/v1/../sleep",
            "/v1/%2e%2e/sleep",
            "/sleep;x=1",
            "/sleep%3Fa=b",
            "/%2Fsleep",
            "/sleep%20",
        ),
        "/\\sleep",
        *("/wake_up", "/abort_request", "/abort_requests", "/inference/v1/abort_requests"),
        *("/reset_prefix_cache", "/flush_cache", "/collective_rpc", "/scale_elastic_ep"),
        *("/v1/load_lora_adapter", "/load_lora_adapter", "/v1/unload_lora_adapter"),
        *(
            "/start_profile",
            "/stop_profile",
            "/update_weights_from_disk",
            "/init_weights_update_group",
        ),
        *("/server_info", "/get_server_info", "/slots", "/slots/0", "/hicache/storage-backend"),
        *("/release_memory_occupation", "/resume_memory_occupation", "/pd_role_switch"),
        *("/metrics/", "//metrics", "/prometheus/metrics", "/slow_down"),
        *("/api/pull", "/api/delete", "/fault_tolerance/apply", "/kv_cache_events"),
    ],
)
def test_what_steers_engines_is_denied_however_it_is_spelt(path: str) -> None:
    assert ("POST", path) in DENIED
    assert ("GET", path) in DENIED


@pytest.mark.parametrize(
    "path",
    [
        *sorted(KNOWN),
        *("/tokenize", "/detokenize", "/generate", "/v1/audio/transcriptions", "/invocations"),
        *("/v1/responses/r-1", "/v1/responses/r-1/cancel", "/v1/messages/count_tokens", "/pooling"),
        *("/v1/chat/completions/render", "/sleepy", "/v1/sleep/x", "/api/chat", "/api/generate"),
        *("/version", "/load", "/v1/realtime", "/classify", "/completion", "/infill"),
    ],
)
def test_what_clients_are_for_is_not(path: str) -> None:
    assert ("POST", path) not in DENIED


def test_a_method_restricts_an_entry() -> None:
    assert ("POST", "/props") in DENIED
    assert ("GET", "/props") not in DENIED


def test_none_denies_nothing() -> None:
    assert ("POST", "/sleep") not in DeniedPaths(())


@pytest.mark.parametrize("entry", ["sleep", "", "post /x", "PSOT /x", "POST", "/a b"])
def test_what_is_no_path_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"server.deny_paths: "):
        DeniedPaths([entry])


def test_dots_do_not_lead_out() -> None:
    assert normalised("/../../a/./b//c/..") == "/a/b"
