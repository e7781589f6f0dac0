"""What one half of a pair, and the gateway before both, tell in their metrics."""

from __future__ import annotations

from collections import defaultdict

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families


class Reading(msgspec.Struct, frozen=True):
    """Of a vLLM, since its start but for the first three, which are as of now. Tokens and requests.

    Attributes:
        used: share of its KV cache that is in use or held for another engine.
        cached: prompt tokens found in its own cache.
        fetched: prompt tokens got from another engine.
        computed: prompt tokens computed there.
        ended, aborted: requests that came to an end, and those of them that count as given up;
            most of these are not counted at all.
        expired: prompts held for another engine until their lease was over.
        too_late: prompts that were read after that.
        failed: transfers that failed.
    """

    running: float = 0.0
    waiting: float = 0.0
    used: float = 0.0
    cached: int = 0
    fetched: int = 0
    computed: int = 0
    ended: int = 0
    aborted: int = 0
    expired: int = 0
    too_late: int = 0
    failed: int = 0

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self.used)

    @property
    def served(self) -> int:
        """Requests that came to their own end."""
        return self.ended - self.aborted

    def since(self, before: Reading) -> Reading:
        """What was counted since an earlier one."""
        counts = ("cached", "fetched", "computed", "ended", "aborted", "expired", "too_late")
        counted = {
            name: getattr(self, name) - getattr(before, name) for name in (*counts, "failed")
        }
        return msgspec.structs.replace(self, **counted)


_NAMES = {
    "running": ("vllm:num_requests_running", ""),
    "waiting": ("vllm:num_requests_waiting", ""),
    "used": ("vllm:kv_cache_usage_perc", ""),
    "cached": ("vllm:prefix_cache_hits_total", ""),
    "fetched": ("vllm:external_prefix_cache_hits_total", ""),
    "computed": ("vllm:prompt_tokens_by_source_total", "local_compute"),
    "ended": ("vllm:request_success_total", ""),
    "aborted": ("vllm:request_success_total", "abort"),
    "expired": ("vllm:nixl_num_kv_expired_reqs_total", ""),
    "too_late": ("vllm:nixl_num_notifications_after_expiry_total", ""),
    "failed": ("vllm:nixl_num_failed_transfers_total", ""),
}
"""By field, the metric, and the value of the label that it is told apart by."""


def read(url: str) -> Reading:
    """Of the vLLM at `url`.

    Raises:
        httpx.HTTPError: it does not answer.
    """
    totals = _totals(url)
    values = {field: totals[name] for field, name in _NAMES.items()}
    return msgspec.convert(values, Reading, strict=False)


class Told(msgspec.Struct, frozen=True):
    """By a gateway, since its start.

    Attributes:
        released: prompts that a prefill engine was told to let go of.
        orphaned: those of which it could not be told.
        cached: prompt tokens that no engine had to compute.
    """

    released: int
    orphaned: int
    cached: int


def told(url: str) -> Told:
    """Of the gateway at `url`.

    Raises:
        httpx.HTTPError: it does not answer.
    """
    totals = _totals(url)
    return Told(
        int(totals["prefixgate_pd_released_total", ""]),
        int(totals["prefixgate_pd_orphaned_total", ""]),
        int(totals["prefixgate_reported_cached_tokens_total", ""]),
    )


def _totals(url: str) -> defaultdict[tuple[str, str], float]:
    """By name, and by name and label value, the sum of the samples; 0 for what is not there."""
    page = httpx.get(f"{url}/metrics", trust_env=False, timeout=30.0)
    page.raise_for_status()
    totals: defaultdict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            told = {sample.labels.get(label, "") for label in ("source", "finished_reason")}
            for value in {"", *told}:
                totals[sample.name, value] += sample.value
    return totals
