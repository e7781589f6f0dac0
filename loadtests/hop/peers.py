"""Commands that start the gateways to compare with, as `peers-setup` installs them."""

from __future__ import annotations

from pathlib import Path

_OPTIONS = (
    "--host 127.0.0.1 --port {port} --worker-urls {b1} {b2} --log-level error "
    "--prometheus-port {metrics}"
)
_VLLM = "vllm-router/bin/vllm-router"
_SGLANG = "sglang-router/bin/python -m sglang_router.launch_router"
_SMG = "smg/bin/smg launch"
_PEERS = {
    "vllm-router cache_aware": f"{_VLLM} --policy cache_aware {_OPTIONS}",
    "vllm-router round_robin": f"{_VLLM} --policy round_robin {_OPTIONS}",
    "sglang-router cache_aware": f"{_SGLANG} --policy cache_aware {_OPTIONS}",
    "smg cache_aware": f"{_SMG} --policy cache_aware {_OPTIONS}",
}


def peer_commands(folder: Path) -> dict[str, str]:
    """By name, the command of each gateway under `folder`, for `Bench.run`."""
    return {name: f"{folder.resolve()}/{command}" for name, command in _PEERS.items()}
