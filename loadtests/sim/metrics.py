"""What the engine shows on /metrics, under vLLM's names and labels."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import generate_latest

from gateway.types import Clock
from loadtests.sim.engine import Engine
from loadtests.sim.histogram import Histogram
from loadtests.sim.report import Step
from loadtests.sim.sequence import Sequence

_TTFT = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
         40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_GAP = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
        80.0)  # fmt: skip
_REQUEST = (.3, .5, .8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
            240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LATENESS = (.001, .002, .005, .01, .025, .05, .1, .25, .5, 1.0)  # fmt: skip
_REQUEST_TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))

STOP, LENGTH, ABORT = "stop", "length", "abort"


class EngineMetrics:
    """
    Args:
        model: the model_name label.
        clock: the engine's timeline's time, to see how late steps are.
    """

    def __init__(self, model: str, clock: Clock) -> None:
        self._clock = clock
        self._labels = {"model_name": model, "engine": "0"}
        self._first_token = Histogram(_TTFT)
        self._gap = Histogram(_GAP)
        self._end_to_end = Histogram(_REQUEST)
        self._queue = Histogram(_REQUEST)
        self._prefill = Histogram(_REQUEST)
        self._decode = Histogram(_REQUEST)
        self._step_tokens = Histogram(_STEP_TOKENS)
        self._prompt_tokens = Histogram(_REQUEST_TOKENS)
        self._output_tokens = Histogram(_REQUEST_TOKENS)
        self._ended = {STOP: 0, LENGTH: 0, ABORT: 0, "error": 0}
        self._lateness = Histogram(_LATENESS)

    def step(self, step: Step) -> None:
        self._lateness.observe(max(0.0, self._clock() - step.end))  # timers may be early too
        self._step_tokens.observe(step.prefilled + step.decoding)
        if step.decoding:
            self._gap.observe(step.seconds, step.decoding)

    def first_token(self, sequence: Sequence, now: float) -> None:
        self._first_token.observe(now - sequence.arrival)

    def ended(self, sequence: Sequence, now: float, reason: str) -> None:
        """Args: reason: `STOP` or `LENGTH`."""
        self._ended[reason] += 1
        self._end_to_end.observe(now - sequence.arrival)
        self._prompt_tokens.observe(sequence.request.input_tokens)
        self._output_tokens.observe(sequence.generated)
        if sequence.admitted is not None:
            self._queue.observe(sequence.admitted - sequence.arrival)
            if sequence.first_token is not None:
                self._prefill.observe(sequence.first_token - sequence.admitted)
                self._decode.observe(now - sequence.first_token)

    def aborted(self) -> None:
        self._ended[ABORT] += 1

    def families(self, engine: Engine) -> Iterator[Metric]:
        counters, cache, profile = engine.counters, engine.cache, engine.profile
        waiting = engine.waiting
        yield self._gauge("num_requests_running", "Requests in the step loop.", engine.running)
        yield self._gauge("num_requests_waiting", "Requests waiting for room.", waiting)
        usage = cache.used / cache.usable
        yield self._gauge("kv_cache_usage_perc", "Blocks in use, 1 is all.", usage)
        for name, help_text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up.", counters.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found.", counters.cached_tokens),
            ("prompt_tokens", "Prompt tokens of admitted requests.", counters.prompt_tokens),
            ("prompt_tokens_cached", "Of those, found in the cache.", counters.cached_tokens),
            ("generation_tokens", "Tokens generated.", counters.generated_tokens),
            ("num_preemptions", "Requests put back to wait.", counters.preemptions),
            ("external_prefix_cache_hits", "Tokens other engines sent.", counters.received_tokens),
            ("nixl_num_kv_expired_reqs", "Prompts that nobody fetched.", counters.expired),
        ):
            yield self._counter(name, help_text, {(): value})
        yield self._counter(
            "prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            {
                ("local_compute",): counters.prompt_tokens
                - counters.cached_tokens
                - counters.received_tokens,
                ("local_cache_hit",): counters.cached_tokens,
                ("external_kv_transfer",): counters.received_tokens,
            },
            ("source",),
        )
        yield self._counter(
            "request_success",
            "Requests that ended.",
            {(reason,): number for reason, number in self._ended.items()},
            ("finished_reason",),
        )
        for name, help_text, histogram in (
            ("time_to_first_token_seconds", "From arrival.", self._first_token),
            ("inter_token_latency_seconds", "Between two tokens.", self._gap),
            ("e2e_request_latency_seconds", "From arrival to the end.", self._end_to_end),
            ("request_queue_time_seconds", "From arrival to admission.", self._queue),
            ("request_prefill_time_seconds", "Admission to first token.", self._prefill),
            ("request_decode_time_seconds", "First token to the end.", self._decode),
            ("iteration_tokens_total", "Tokens in a step.", self._step_tokens),
            ("request_prompt_tokens", "Prompt tokens of a request.", self._prompt_tokens),
            ("request_generation_tokens", "Output tokens of a request.", self._output_tokens),
        ):
            yield self._histogram(name, help_text, histogram)
        yield self._histogram(
            "step_lateness_seconds",
            "How late steps ended because the machine was busy.",
            self._lateness,
            prefix="simulator",
        )
        info = {
            "engine": "0",
            "block_size": str(profile.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(profile.prefix_caching),
            "gpu_memory_utilization": str(profile.memory.utilization),
            "kv_cache_size_tokens": str(profile.num_blocks * profile.block_size),
            "num_gpu_blocks": str(profile.num_blocks),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache's settings.", labels=list(info)
        )
        family.add_metric(list(info.values()), 1)
        yield family

    def text(self, engine: Engine) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Families(self, engine))
        return generate_latest(registry)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(
        self,
        name: str,
        help_text: str,
        values: dict[tuple[str, ...], int],
        labels: tuple[str, ...] = (),
    ) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", help_text, labels=[*self._labels, *labels])
        for extra, value in values.items():
            family.add_metric([*self._labels.values(), *extra], value)
        return family

    def _histogram(
        self, name: str, help_text: str, histogram: Histogram, prefix: str = "vllm"
    ) -> Metric:
        family = HistogramMetricFamily(f"{prefix}:{name}", help_text, labels=list(self._labels))
        family.add_metric(
            list(self._labels.values()), histogram.cumulative(), sum_value=histogram.total
        )
        return family


class _Families:
    def __init__(self, metrics: EngineMetrics, engine: Engine) -> None:
        self._metrics = metrics
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families(self._engine)
