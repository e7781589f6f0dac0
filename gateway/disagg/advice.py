"""Whether separate prefill and decode engines pay, and how many of each the load needs."""

from __future__ import annotations

from math import sqrt

import msgspec

WAITS_WORTH = 3.0
"""Handovers pay when the slowest first tokens on mixed engines take so many times as long as a long
prompt's transfer."""
LEAST_CONCURRENCY = 8.0
"""Requests in flight below which nobody is in anybody's way."""
LEAST_VARIATION = 0.3
"""Standard deviation of prompt lengths over their mean: alike prompts stall each other alike."""
BALANCED = (0.8, 1.25)
"""Utilisation of the prefill pool over that of the decode pool."""


class Observed(msgspec.Struct, frozen=True):
    """What was seen over the last minutes.

    Attributes:
        ttft_p99: seconds, of requests that one engine served.
        prompt_p95: tokens.
        prompt_mean, prompt_deviation: tokens.
        concurrency: requests in flight, on average.
        prefill_seconds: of prefill per second, all engines together.
        decode_seconds: of decode per second, likewise: each stream's share of the steps.
        prefill_engines, decode_engines: how many there are; unified ones count as neither.
    """

    ttft_p99: float
    prompt_p95: float
    prompt_mean: float
    prompt_deviation: float
    concurrency: float
    prefill_seconds: float
    decode_seconds: float
    prefill_engines: int
    decode_engines: int


class Advice(msgspec.Struct, frozen=True):
    """Attributes:
    pays: whether handovers pay at present.
    reason: why, or why not.
    transfer_seconds: of a prompt longer than 95 % of all.
    prefill_engines: how many of the engines with a role would best prefill.
    ratio: prefill engines per decode engine that the load would need; None without load.
    prefill_utilisation, decode_utilisation: shares of the pools' time; None without such engines.
    balance: the one over the other; None where either is not known.
    """

    pays: bool
    reason: str
    transfer_seconds: float
    prefill_engines: int | None
    ratio: float | None
    prefill_utilisation: float | None
    decode_utilisation: float | None
    balance: float | None

    @property
    def balanced(self) -> bool | None:
        """Whether neither pool has much more to do than the other; None when it is not known."""
        return None if self.balance is None else BALANCED[0] <= self.balance <= BALANCED[1]


def advise(observed: Observed, bytes_per_token: float, bandwidth: float) -> Advice:
    """
    Args:
        bytes_per_token: of the KV cache.
        bandwidth: bytes per second between engines.

    Raises:
        ValueError: the bandwidth is not above 0.
    """
    if bandwidth <= 0.0:
        raise ValueError(f"bandwidth must be above 0, got {bandwidth}")
    transfer = observed.prompt_p95 * bytes_per_token / bandwidth
    pays, reason = _pays(observed, transfer)
    prefill, decode = observed.prefill_seconds, observed.decode_seconds
    of_prefill = _over(prefill, observed.prefill_engines)
    of_decode = _over(decode, observed.decode_engines)
    balance = None
    if of_prefill is not None and of_decode:
        balance = of_prefill / of_decode
    return Advice(
        pays=pays,
        reason=reason,
        transfer_seconds=transfer,
        prefill_engines=_share(observed),
        ratio=_over(prefill, decode),
        prefill_utilisation=of_prefill,
        decode_utilisation=of_decode,
        balance=balance,
    )


def _pays(observed: Observed, transfer: float) -> tuple[bool, str]:
    if observed.concurrency < LEAST_CONCURRENCY:
        return False, f"{observed.concurrency:.1f} requests in flight do not disturb each other"
    variation = _over(observed.prompt_deviation, observed.prompt_mean) or 0.0
    if variation < LEAST_VARIATION:
        return False, "prompts are all of about one length"
    if observed.ttft_p99 < WAITS_WORTH * transfer:
        return False, (
            f"the slowest first tokens take {observed.ttft_p99:.2f} s, less than {WAITS_WORTH:g}"
            f" times the {transfer:.2f} s that a long prompt's transfer takes"
        )
    return True, (
        f"the slowest first tokens take {observed.ttft_p99:.2f} s, a long prompt's transfer"
        f" {transfer:.2f} s"
    )


def _share(observed: Observed) -> int | None:
    """Prefill engines out of all that have a role, by the work that there is: at least one of
    each, and a pool that queues gets more than its share of work, as its square root says."""
    engines = observed.prefill_engines + observed.decode_engines
    prefill, decode = observed.prefill_seconds, observed.decode_seconds
    if engines < 2 or prefill + decode <= 0.0:
        return None
    spare = engines - prefill - decode
    if spare > 0.0:
        weight = sqrt(prefill) / (sqrt(prefill) + sqrt(decode))
        wanted = prefill + spare * weight
    else:
        wanted = engines * prefill / (prefill + decode)
    return min(engines - 1, max(1, round(wanted)))


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole else None
