"""What was seen of each model's requests in the last minutes: what advice is made of.

Requests are told when they have ended, one call each; minutes that are over are dropped as a whole.
Of very many requests some are looked at and stand for the others, so that what nobody may ever ask
for costs next to nothing; handovers are never among those that are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.disagg.model_at import model_at
from gateway.disagg.networks import Networks
from gateway.disagg.span import Span, Waste, add
from gateway.disagg.transfer import Transfer
from gateway.fleet.fleet import Fleet
from gateway.scheduling.load import BackendLoad
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import RequestRecord
from gateway.types import Clock, Outcome
from policies.cost import SAFE_FILL, step_seconds

MINUTE = 60.0
MINUTES = 5
"""That are looked back on, the one that has begun included."""
LOOKED_AT = 100
"""Requests between two refreshes that each count for themselves. Where there are more, every second
or third one and so on counts for two, or three."""
MAX_STREAMS = 256
"""Streams that an engine decodes at a time at most, as engines are usually set."""


class Traffic:
    """
    Args:
        loads: the ledgers, by backend id.
        pace: seconds per output token that streams are to keep to; None when any will do.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        loads: Mapping[str, BackendLoad],
        networks: Networks,
        metrics: Metrics,
        pace: Callable[[], float | None],
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._loads = loads
        self._networks = networks
        self._metrics = metrics
        self._pace = pace
        self._clock = clock
        self._since = clock()
        self._minutes: dict[int, dict[str, Span]] = {}
        self._ended = 0
        """Since the last refresh, without handovers."""
        self._stride = 1

    # what is looked at

    def seen(self, model: str) -> Span:
        """All that was seen of a model in the last `seconds`."""
        self._forget_old()
        whole = Span()
        for spans in self._minutes.values():
            if model in spans:
                whole.take_in(spans[model])
        return whole

    @property
    def seconds(self) -> float:
        """How far back that goes; up to `MINUTES`."""
        passed = self._clock() - self._since
        whole = max(0, int(passed // MINUTE) - MINUTES + 1)
        return passed - MINUTE * whole

    # what happens

    def ended(self, record: RequestRecord) -> None:
        """A request has ended, in whatever way."""
        load = self._loads.get(record.backend)
        if load is None or (record.ttft is None and record.outcome is not Outcome.OK):
            return
        stands_for = 1
        if not record.prefill_backend:
            stands_for = self._stride
            self._ended += 1
            if self._ended % stands_for:
                return
        span = self._span(self.model_at(record.backend, record.model))
        reported = record.reported_prompt_tokens
        prompt = float(reported or record.prompt_tokens)
        span.requests += stands_for
        span.seconds += stands_for * (record.duration - record.queue_seconds)
        span.prompts.add(prompt, stands_for)
        prefill = load
        if record.prefill_backend:
            span.handovers += 1
            prefill = self._loads.get(record.prefill_backend, load)
            if record.ttft is not None:
                span.handed_ttft.add(record.ttft)
        else:
            if record.ttft is not None:
                span.ttft.add(record.ttft, stands_for)
            if record.tpot is not None:
                span.tpot.add(record.tpot, stands_for)
        scale = prompt / record.prompt_tokens if record.prompt_tokens else 1.0
        work = work_seconds(prefill, prompt, scale * record.uncached_tokens)
        add(span.prefill, prefill.id, stands_for * work)
        if record.output_tokens:
            share = stream_share(load, prompt + 0.5 * record.output_tokens, self._pace())
            add(span.decode, load.id, stands_for * share * record.output_tokens)

    def refresh(self) -> None:
        """To be called a few times a second."""
        self._stride = 1 + self._ended // LOOKED_AT
        self._ended = 0

    def transfer(
        self, prefill: str, decode: str, name: str, tokens: float, began: float | None
    ) -> Transfer:
        """A prefill leg is done.

        Args:
            name: the model's, as the client has it.
            tokens: that the decode engine lacks.
            began: when it was done; None where nobody sees that.
        """
        model = self.model_at(prefill, name)
        links, sized = self._networks.links(model), self._networks.of(model) is not None
        return Transfer(self, model, links, sized, prefill, decode, tokens, began)

    def wasted(self, prefill: str, name: str, why: Waste, seconds: float) -> None:
        """Nobody will fetch what a prefill leg has computed.

        Args:
            seconds: that its prefill should have taken.
        """
        span = self._span(self.model_at(prefill, name))
        span.wasted[why] = span.wasted.get(why, 0) + 1
        span.wasted_seconds += seconds
        add(span.prefill, prefill, seconds)
        self._metrics.wasted_prefill(why)

    # told by transfers

    def moment(self, decode: str) -> tuple[float, float]:
        """Now, and how long a step takes at a decode engine."""
        load = self._loads.get(decode)
        return self._clock(), 0.0 if load is None else step_seconds(load)

    def is_prefilling(self, id: str) -> bool:
        """Whether an engine has prefills of its own to do."""
        load = self._loads.get(id)
        return load is not None and load.pending_seconds(self._clock()) > 0.0

    def moved(self, model: str, tokens: float, size: float | None) -> None:
        span = self._span(model)
        span.transfers += 1
        span.moved_tokens += tokens
        if size is not None:
            span.moved_bytes += size
            self._metrics.kv_bytes += size

    def timed(self, model: str, tokens: float, seconds: float, predicted: float | None) -> None:
        span = self._span(model)
        span.observed.add(seconds)
        span.timed_tokens += tokens
        self._metrics.transfers_observed.observe(seconds)
        if predicted is not None:
            span.predicted.add(predicted)
            self._metrics.transfers_predicted.observe(predicted)

    # how it is done

    def model_at(self, id: str, name: str) -> str:
        """Whose model's cache a backend has for requests for a model."""
        return model_at(self._fleet, id, name)

    def _span(self, model: str) -> Span:
        number = int((self._clock() - self._since) // MINUTE)
        spans = self._minutes.get(number)
        if spans is None:
            self._forget_old()
            spans = self._minutes[number] = {}
        span = spans.get(model)
        if span is None:
            span = spans[model] = Span()
        return span

    def _forget_old(self) -> None:
        oldest = int((self._clock() - self._since) // MINUTE) - MINUTES + 1
        for number in [number for number in self._minutes if number < oldest]:
            del self._minutes[number]


def work_seconds(load: BackendLoad, prompt_tokens: float, uncached_tokens: float) -> float:
    """A prefill's own time on an engine, without what else its steps do."""
    before = prompt_tokens - 0.5 * uncached_tokens
    return uncached_tokens / load.prefill_rate * (1.0 + before / load.attention_context)


def stream_share(load: BackendLoad, context: float, pace: float | None) -> float:
    """Seconds of an engine's time that a stream takes per token, beside as many like it as the
    engine has room for and keep their pace. An engine with one stream makes steps all the time and
    is nearly idle all the same.

    Args:
        context: tokens, of a stream on average.
        pace: seconds per output token that streams are to keep to.
    """
    each = load.stream_seconds + load.context_seconds * context
    streams = min(float(MAX_STREAMS), SAFE_FILL * load.capacity_tokens / max(1.0, context))
    if pace is not None:
        streams = min(streams, (pace - load.step_seconds) / each)
    return load.step_seconds / max(1.0, streams) + each
