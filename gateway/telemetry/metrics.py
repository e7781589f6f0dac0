"""What the gateway counts: plain numbers, added to once per request, read at scrape time."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.telemetry.histogram import Histogram
from gateway.telemetry.record import RequestRecord
from gateway.types import Outcome, Priority, Reason, WorkClass

OTHER = "other"
"""Label of what is not known here: models that nobody serves, backends that were removed."""
UNNAMED = "none"
"""Model label of requests that name no model."""
RELOADS = ("applied", "unchanged", "refused")
"""What came of loading the settings anew."""
MAX_MODELS = 256
"""Models with series of their own. What is served beyond that is counted under `OTHER`."""

TTFT_BOUNDS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
TPOT_BOUNDS = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03),
    *(0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
)
QUEUE_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0),
)
REQUEST_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0),
)
CACHE_ERROR_BOUNDS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
LOOP_LAG_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class ModelSeries:
    """What is counted for each model.

    Attributes:
        requests: by dialect and outcome.
        prompt_tokens, matched_tokens, uncached_tokens: as estimated at the decision.
        reported_prompt_tokens, reported_cached_tokens: as engines report them.
        cache_reported_prompt_tokens: prompt tokens of the answers that also tell how many of them
            were cached.
        output_tokens: generated.
    """

    __slots__ = (
        "cache_reported_prompt_tokens",
        "matched_tokens",
        "output_tokens",
        "prompt_tokens",
        "reported_cached_tokens",
        "reported_prompt_tokens",
        "requests",
        "uncached_tokens",
    )

    def __init__(self) -> None:
        self.requests: dict[str, dict[Outcome, int]] = {}
        self.prompt_tokens = 0
        self.matched_tokens = 0.0
        self.uncached_tokens = 0
        self.reported_prompt_tokens = 0
        self.reported_cached_tokens = 0
        self.cache_reported_prompt_tokens = 0
        self.output_tokens = 0

    def count(self, dialect: str, outcome: Outcome) -> None:
        outcomes = self.requests.get(dialect)
        if outcomes is None:
            # All at once and at 0: a rate needs to see a series before its first increment.
            outcomes = self.requests[dialect] = dict.fromkeys(Outcome, 0)
        outcomes[outcome] += 1


class BackendSeries:
    """What is counted for each backend.

    Attributes:
        routed: requests sent there, by class.
        errors: failed exchanges, by kind.
        ejected: it is taken out for failing.
        ejections: how often it was.
        load_failures: how often it was asked for its load and did not tell.
    """

    __slots__ = ("ejected", "ejections", "errors", "load_failures", "routed")

    def __init__(self) -> None:
        self.routed = dict.fromkeys(WorkClass, 0)
        self.errors: dict[str, int] = {}
        self.ejected = False
        self.ejections = 0
        self.load_failures = 0


class ClassSeries:
    """The latencies of one class, in seconds; waits also by priority."""

    __slots__ = ("queue_wait", "request", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_BOUNDS)
        self.tpot = Histogram(TPOT_BOUNDS)
        self.queue_wait = {priority: Histogram(QUEUE_BOUNDS) for priority in Priority}
        self.request = Histogram(REQUEST_BOUNDS)


class Metrics:
    """All counters of one gateway process.

    Clients choose neither how many series there are nor what they are called: a model gets series
    of its own when it is served, a backend when the fleet has it, everything else is `OTHER`.

    Args:
        serves: whether a backend is known that serves a model of this name.

    Attributes:
        decisions: routed requests by the decision's reason.
        spills: of these, those with the reason `spill`, by cause.
        unkeyed: routed requests without a prompt key, by dialect.
        head_refusals: connections and requests refused before they were requests, by reason.
        refusals: requests that admission refused, by class and reason.
        disconnects: clients that left, by phase.
        redials: requests sent again because a reused connection was already dead.
        retries: requests sent to another backend after one had refused or failed them.
        placements: requests of models that prefill engines serve, by where they were prefilled
            and why.
        fallbacks: requests that were to be handed over and were not, by reason.
        releases: prefill engines that were told to let go of what nobody would fetch.
        orphaned: what nobody would fetch and no engine was told to let go of, by why.
        prefill_legs: seconds that they took, where the decode leg waited for them.
        wasted_prefills: of these legs, those whose result nobody fetched, by why.
        kv_bytes: moved from prefill engines to decode engines.
        transfers_observed: seconds from the end of a prefill leg to the decode engine's first
            content, less a step.
        transfers_predicted: what was expected of those.
        cache_overestimate, cache_underestimate: how far, in tokens, the prediction lay above or
            below what the engine says was cached; exact ones are under.
        loop_lag: seconds by which the event loop ran a timer late.
        config_reloads: attempts to load the settings anew, by result.
        config_is_current: the last one was not refused.
        config_loaded: when the settings were last loaded without error, seconds since 1970.
    """

    def __init__(self, serves: Callable[[str], bool]) -> None:
        self._serves = serves
        self.models: dict[str, ModelSeries] = {}
        self.backends: dict[str, BackendSeries] = {}
        self.classes = {work_class: ClassSeries() for work_class in WorkClass}
        self.decisions = dict.fromkeys(Reason, 0)
        self.spills: dict[str, int] = {}
        self.unkeyed: dict[str, int] = {}
        self.head_refusals: dict[str, int] = {}
        self.refusals: dict[tuple[WorkClass, str], int] = {}
        self.disconnects: dict[str, int] = {}
        self.redials = 0
        self.retries = 0
        self.placements: dict[tuple[str, str], int] = {}
        self.fallbacks: dict[str, int] = {}
        self.releases = 0
        self.orphaned: dict[str, int] = {}
        self.prefill_legs = Histogram(TTFT_BOUNDS)
        self.wasted_prefills: dict[str, int] = {}
        self.kv_bytes = 0.0
        self.transfers_observed = Histogram(TTFT_BOUNDS)
        self.transfers_predicted = Histogram(TTFT_BOUNDS)
        self.cache_overestimate = Histogram(CACHE_ERROR_BOUNDS)
        self.cache_underestimate = Histogram(CACHE_ERROR_BOUNDS)
        self.loop_lag = Histogram(LOOP_LAG_BOUNDS)
        self.config_reloads = dict.fromkeys(RELOADS, 0)
        self.config_is_current = True
        self.config_loaded = time.time()

    def config_reloaded(self, result: str) -> None:
        """Args:
        result: one of `RELOADS`.
        """
        self.config_reloads[result] += 1
        self.config_is_current = result != "refused"
        if self.config_is_current:
            self.config_loaded = time.time()

    def refused(self, reason: str) -> None:
        """A connection or a head was refused."""
        _add(self.head_refusals, reason)

    # the fleet's backends

    def backend_changed(self, id: str, state: str) -> None:
        """Hear of a backend and of every change of it, at the latest before requests go there.

        Ejections are counted; what was counted for a backend goes when it is removed, and what is
        still under way there becomes `OTHER`.

        Args:
            state: the one it is in now; the same one may be told again.
        """
        if state == "removed":
            self._forget(id)
            return
        series = self.backends.get(id)
        if series is None:
            series = self.backends[id] = BackendSeries()
        if state == "ejected" and not series.ejected:
            series.ejections += 1
        series.ejected = state == "ejected"

    def _forget(self, id: str) -> None:
        self.backends.pop(id, None)
        if len(self.models) >= MAX_MODELS:
            # Room for those that come, which is wanted where adapters come and go.
            for name in [name for name in self.models if not self._serves(name)]:
                del self.models[name]

    def upstream_error(self, backend: str, kind: str) -> None:
        errors = self._backend(backend).errors
        errors[kind] = errors.get(kind, 0) + 1

    def load_failed(self, backend: str) -> None:
        self._backend(backend).load_failures += 1

    # handovers

    def fallback(self, reason: str) -> None:
        """A request that was to be handed over is served by one engine."""
        _add(self.fallbacks, reason)

    def wasted_prefill(self, reason: str) -> None:
        """Nobody fetched what a prefill leg had computed."""
        _add(self.wasted_prefills, reason)

    def orphan(self, reason: str) -> None:
        """A prefill engine may hold what nobody will fetch, and is not told so."""
        _add(self.orphaned, reason)

    # requests

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended. To be called exactly once for each."""
        outcome = record.outcome
        if outcome is None:
            outcome = Outcome.INTERNAL_ERROR
        model = self.models.get(record.model)
        if model is None:
            model = self._model(record.model)
        model.count(record.dialect, outcome)
        if record.disconnect_phase is not None:
            _add(self.disconnects, record.disconnect_phase)
        work_class = record.work_class
        if work_class is None:
            return
        if record.refusal is not None:
            refused = (work_class, record.refusal)
            self.refusals[refused] = self.refusals.get(refused, 0) + 1
        if record.reason is not None:
            self._routed(record, work_class, record.reason, model)

    def _routed(
        self, record: RequestRecord, work_class: WorkClass, reason: Reason, model: ModelSeries
    ) -> None:
        backend = self.backends.get(record.backend)
        if backend is None:
            backend = self._backend(record.backend)
        self.decisions[reason] += 1
        backend.routed[work_class] += 1
        if record.placement:
            placed = (record.placement, record.placement_reason)
            self.placements[placed] = self.placements.get(placed, 0) + 1
            if record.prefill_leg_seconds is not None:
                self.prefill_legs.observe(record.prefill_leg_seconds)
        if record.spill is not None:
            _add(self.spills, record.spill)
        if not record.keyed:
            _add(self.unkeyed, record.dialect)
        model.prompt_tokens += record.prompt_tokens
        model.matched_tokens += record.matched_tokens
        model.uncached_tokens += record.uncached_tokens
        model.output_tokens += record.output_tokens
        series = self.classes[work_class]
        series.queue_wait[record.priority].observe(record.queue_seconds)
        series.request.observe(record.duration)
        if record.ttft is not None:
            series.ttft.observe(record.ttft)
            if record.tpot is not None:
                series.tpot.observe(record.tpot)
        if record.reported_prompt_tokens is not None:
            self._reported(record, record.reported_prompt_tokens, model)

    def _reported(self, record: RequestRecord, prompt: int, model: ModelSeries) -> None:
        model.reported_prompt_tokens += prompt
        cached = record.reported_cached_tokens
        if cached is None:
            return
        model.reported_cached_tokens += cached
        model.cache_reported_prompt_tokens += prompt
        if record.keyed and record.prompt_tokens:
            # Compared as shares of the prompt, because our tokens are an estimate from bytes and
            # the engine's are not; then in the engine's tokens, so that long prompts weigh more.
            predicted = record.matched_tokens / record.prompt_tokens * prompt
            if predicted > cached:
                self.cache_overestimate.observe(predicted - cached)
            else:
                self.cache_underestimate.observe(cached - predicted)

    # series are made when they are first needed

    def _model(self, name: str) -> ModelSeries:
        """The series of a model that has none under its own name yet."""
        if name == "":
            name = UNNAMED
        elif len(self.models) >= MAX_MODELS or not self._serves(name):
            name = OTHER
        series = self.models.get(name)
        if series is None:
            series = self.models[name] = ModelSeries()
        return series

    def _backend(self, id: str) -> BackendSeries:
        series = self.backends.get(id) or self.backends.get(OTHER)
        if series is None:
            series = self.backends[OTHER] = BackendSeries()
        return series


def _add(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
