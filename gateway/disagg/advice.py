"""Whether separate prefill and decode engines pay, and how many of each the load needs.

The rules are those that are published: disaggregation is for loads in which first tokens wait much
longer than a transfer takes, of prompts that differ, with enough requests in flight that they meet
at an engine at all. Where it is not, and answers are stalled by prefills, smaller chunks are the
remedy; where it is so for the worst of the waits only, a pool of both kinds.
"""

from __future__ import annotations

from enum import StrEnum
from math import sqrt

import msgspec

WAITS_WORTH = 3.0
"""Handovers pay when the slowest first tokens on mixed engines take so many times as long as a long
prompt's transfer."""
LEAST_CONCURRENCY = 8.0
"""Requests in flight below which nobody is in anybody's way."""
LEAST_VARIATION = 0.3
"""Standard deviation of prompt lengths over their mean: alike prompts stall each other alike."""
LEAST_SEEN = 100
"""First tokens without which there is no 99th percentile of them."""
STALLED = 2.0
"""Where no pace is wanted: answers are stalled when the slowest take so many times as long per
token as half of them do."""
SOME = (0.1, 0.9)
"""Shares of handovers between which the load is one for both kinds of engines."""
BALANCED = (0.8, 1.25)
"""Utilisation of the prefill pool over that of the decode pool."""


class Remedy(StrEnum):
    NOTHING = "nothing"
    CHUNKED_PREFILL = "chunked_prefill"
    """Smaller chunks of prefill on engines that do both."""
    MIXED = "mixed"
    """Engines that do both, and prefill engines for what is worth a handover."""
    DISAGGREGATE = "disaggregate"


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen over the last minutes. What is null was not seen, or is not known.

    `ttft` and `tpot` are of streams that one engine served, `all_ttft` is of all streams. `pace` is
    the time per output token that is aimed at. `transfer` is what the KV cache of a prompt longer
    than 95 % of all takes from engine to engine. Seconds of work are an engine's time, all engines
    together; a stream counts as its part of a step with as many streams as there is room for.
    `concurrency` is the mean number of requests at engines.
    """

    window_seconds: float
    ttft_count: int = 0
    ttft_p50_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    all_ttft_count: int = 0
    all_ttft_p50_seconds: float | None = None
    all_ttft_p99_seconds: float | None = None
    tpot_count: int = 0
    tpot_p50_seconds: float | None = None
    tpot_p99_seconds: float | None = None
    pace_seconds: float | None = None
    prompt_count: int = 0
    prompt_mean_tokens: float | None = None
    prompt_deviation_tokens: float | None = None
    prompt_p95_tokens: float | None = None
    transfer_p95_prompt_seconds: float | None = None
    concurrency_requests: float = 0.0
    handover_ratio: float | None = None
    """Share of the requests that were prefilled elsewhere."""
    prefill_seconds_per_second: float = 0.0
    decode_seconds_per_second: float = 0.0
    prefill_engines: int = 0
    decode_engines: int = 0
    unified_engines: int = 0
    """Healthy ones that serve the model."""
    chunk_tokens: int | None = None
    """Prompt tokens that a step takes at most at those that generate: the most that any says."""
    prefill_utilisation_ratio: float | None = None
    decode_utilisation_ratio: float | None = None
    """Shares of the time of the engines of one role that are at work."""

    @property
    def engines(self) -> int:
        return self.prefill_engines + self.decode_engines + self.unified_engines


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """`advice` is null, and `pays` with it, where too little is known to give any; `reason` then
    says what is missing."""

    advice: Remedy | None
    reason: str
    """In one sentence."""
    pays: bool | None
    """Whether handovers would shorten the slowest waits by more than they take."""
    prefill_to_decode_ratio: float | None
    """Prefill engines per decode engine that the load would need; null without load."""
    prefill_engines_wanted: int | None
    decode_engines_wanted: int | None
    """How the engines that there are would best be split, whatever their roles are now."""
    balance_ratio: float | None
    """Utilisation of the prefill pool over that of the decode pool."""
    balanced: bool | None
    """Whether that is within 0.8 and 1.25: neither pool has much more to do than the other."""


def advise(observed: Observed) -> Advice:
    pays, remedy, reason = _judge(observed)
    wanted = _share(observed)
    balance = None
    if observed.prefill_utilisation_ratio is not None:
        balance = _over(observed.prefill_utilisation_ratio, observed.decode_utilisation_ratio)
    return Advice(
        advice=remedy,
        reason=reason,
        pays=pays,
        prefill_to_decode_ratio=_over(
            observed.prefill_seconds_per_second, observed.decode_seconds_per_second
        ),
        prefill_engines_wanted=wanted,
        decode_engines_wanted=None if wanted is None else observed.engines - wanted,
        balance_ratio=balance,
        balanced=None if balance is None else BALANCED[0] <= balance <= BALANCED[1],
    )


def _judge(seen: Observed) -> tuple[bool | None, Remedy | None, str]:
    if not seen.prompt_count:
        return None, None, f"no request was served in the last {seen.window_seconds:.0f} s"
    if seen.concurrency_requests < LEAST_CONCURRENCY:
        return (
            False,
            Remedy.NOTHING,
            f"{seen.concurrency_requests:.1f} requests in flight do not disturb each other;"
            f" {LEAST_CONCURRENCY:g} would",
        )
    stalled = _stalled(seen)
    if seen.engines < 2:
        return _without(stalled, "there is one engine only")
    variation = _over(seen.prompt_deviation_tokens or 0.0, seen.prompt_mean_tokens or 0.0) or 0.0
    if variation < LEAST_VARIATION:
        return _without(
            stalled,
            f"prompts are all of about one length ({seen.prompt_mean_tokens:.0f} tokens, give or"
            f" take {100 * variation:.0f} %)",
        )
    # Of a load that is handed over in part, what one engine serves are those that wait least.
    handed = (seen.handover_ratio or 0.0) > SOME[0]
    count = seen.all_ttft_count if handed else seen.ttft_count
    slowest = seen.all_ttft_p99_seconds if handed else seen.ttft_p99_seconds
    usual = seen.all_ttft_p50_seconds if handed else seen.ttft_p50_seconds
    if slowest is None or usual is None or count < LEAST_SEEN:
        return (
            None,
            None,
            f"only {count} streams of the last {seen.window_seconds:.0f} s can be compared with a"
            f" transfer; how long the slowest wait shows from {LEAST_SEEN} on",
        )
    transfer = seen.transfer_p95_prompt_seconds
    if transfer is None:
        return (
            None,
            None,
            f"the slowest first tokens (P99) take {_time(slowest)}; a transfer's time is unknown,"
            " as disagg.models does not say how large the model's KV cache is",
        )
    less = ""
    if handed:
        slowest, usual = max(0.0, slowest - transfer), max(0.0, usual - transfer)
        less = ", less a transfer"
    times = (
        f"the slowest first tokens (P99{less}) take {_time(slowest)}, and the transfer of a long"
        f" prompt (P95, {seen.prompt_p95_tokens:.0f} tokens) {_time(transfer)}"
    )
    if slowest < WAITS_WORTH * transfer:
        return _without(stalled, f"{times}: less than {WAITS_WORTH:g} times as long")
    return True, *_extent(seen.handover_ratio or 0.0, usual, transfer, times)


def _extent(share: float, usual: float, transfer: float, times: str) -> tuple[Remedy, str]:
    """Handovers pay: for some requests, or for all?

    Args:
        share: of the requests that are handed over now.
        usual: seconds to half of the first tokens.
    """
    if SOME[0] < share < SOME[1]:
        return Remedy.MIXED, f"{times}; {100 * share:.0f} % of the requests are handed over"
    if usual < WAITS_WORTH * transfer:
        return (
            Remedy.MIXED,
            f"{times}, but half of the first tokens come within {_time(usual)}, too soon for a"
            " handover",
        )
    return Remedy.DISAGGREGATE, f"{times}; half of the first tokens take {_time(usual)} or more"


def _without(stalled: str | None, reason: str) -> tuple[bool, Remedy, str]:
    """Handovers do not pay."""
    if stalled is None:
        return False, Remedy.NOTHING, reason
    return False, Remedy.CHUNKED_PREFILL, f"{reason}; {stalled}"


def _stalled(seen: Observed) -> str | None:
    """How much prefills delay the answers beside them; None where they do not."""
    usual, slowest, pace = seen.tpot_p50_seconds, seen.tpot_p99_seconds, seen.pace_seconds
    if usual is None or slowest is None or seen.tpot_count < LEAST_SEEN:
        return None
    if slowest <= (STALLED * usual if pace is None else pace):
        return None
    chunk = seen.chunk_tokens
    chunks = "" if chunk is None else f" beside chunks of {chunk} tokens"
    aim = "" if pace is None else f", where {_time(pace)} is the aim"
    return (
        f"the slowest answers (P99) take {_time(slowest)} per token{chunks}{aim}, half"
        f" of them {_time(usual)} or less"
    )


def _share(observed: Observed) -> int | None:
    """Prefill engines out of all, by the work that there is: at least one of each, and a pool that
    queues gets more than its share of work, as its square root says."""
    engines = observed.engines
    prefill, decode = observed.prefill_seconds_per_second, observed.decode_seconds_per_second
    if engines < 2 or prefill + decode <= 0.0:
        return None
    spare = engines - prefill - decode
    if spare > 0.0:
        weight = sqrt(prefill) / (sqrt(prefill) + sqrt(decode))
        wanted = prefill + spare * weight
    else:
        wanted = engines * prefill / (prefill + decode)
    return min(engines - 1, max(1, round(wanted)))


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1000 * seconds:.3g} ms"


def _over(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
