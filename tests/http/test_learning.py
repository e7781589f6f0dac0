from __future__ import annotations

import struct

import pytest

from gateway.estimates.errors import Estimate
from gateway.http.client import AsgiClient
from gateway.http.context import RequestContext
from gateway.http.dialects.registry import dialect_for
from gateway.http.facts import Facts
from gateway.http.learning import LEARNT, Learning
from gateway.prefix.blocks import BlockScale
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.telemetry.record import RequestRecord
from gateway.types import HASH_BYTES, Decision, Match, Outcome, Prompt, Reason, WorkClass
from policies.base import RouteRequest

CHAIN = struct.pack("<8Q", *range(1, 9))


class Site:
    """Two backends of one model."""

    def __init__(self) -> None:
        self.now = 100.0
        self.index = PrefixIndex(BlockScale(), 1000)
        self.loads = {id: BackendLoad(id) for id in "ab"}
        self.learning = Learning(index=self.index, loads=self.loads, clock=lambda: self.now)
        for id in "ab":
            self.index.add_backend(id, 16_000.0)
            self.learning.backend_changed(id, "m", 16_000.0)

    def context(
        self, backend: str = "a", prompt_tokens: int = 1000, held: int = 0
    ) -> RequestContext:
        """A stream that was just sent to a backend; somebody holds so many of its blocks."""

        async def nowhere(*_: object) -> None:
            """Nothing is received or sent."""

        dialect = dialect_for("POST", "/v1/completions")
        prompt = Prompt("m", key=b"x", prompt_bytes=4 * prompt_tokens)
        match = Match({"b": held} if held else {})
        request = RouteRequest("m", CHAIN, prompt_tokens, 300, match, now=self.now)
        lease = Lease(
            self.loads[backend],
            Decision(backend, Reason.LOAD),
            WorkClass.DECODE,
            prompt_tokens,
            prompt_tokens,
            prompt_tokens / 10_000,
            lambda: self.now,
        )
        client = AsgiClient(nowhere, nowhere)
        context = RequestContext({}, client, dialect, RequestRecord("r", dialect.name))
        context.facts, context.request, context.lease = Facts(prompt, request), request, lease
        context.booking = self.index.book(backend, CHAIN)
        self.learning.dispatched(lease, streamed=True)
        return context

    def answer(
        self,
        context: RequestContext,
        outcome: Outcome = Outcome.OK,
        output_tokens: int = 10,
        reported: int | None = None,
        cached: int | None = None,
    ) -> None:
        assert context.lease is not None
        assert context.booking is not None
        self.index.confirm(context.booking)
        record = context.record
        record.outcome, record.output_tokens = outcome, output_tokens
        record.reported_prompt_tokens, record.reported_cached_tokens = reported, cached
        context.lease.output_tokens = output_tokens
        self.learning.answered(context)
        self.learning.left(context, context.lease)
        context.lease.release()

    def count(self, estimate: Estimate) -> int:
        return self.learning.errors.snapshot()[estimate].count


def test_bytes_of_a_token_are_learnt_from_what_engines_count() -> None:
    site = Site()
    for _ in range(50):
        site.answer(site.context(), reported=2000)
    assert site.learning.tokens.bytes_per_token("m") == pytest.approx(2.0, rel=0.05)
    errors = site.learning.errors.snapshot()[Estimate.PROMPT_TOKENS]
    assert (errors.predicted, errors.actual) == (50_000, 100_000)


def test_lengths_are_learnt_from_answers_that_ended_well() -> None:
    site = Site()
    for _ in range(20):
        site.answer(site.context(), output_tokens=10)
        site.answer(site.context(), Outcome.CANCELLED, output_tokens=4000)
    expected = site.learning.outputs.expect("m", "openai-completions", "", CHAIN, None)
    assert expected == pytest.approx(10, abs=1)
    assert site.count(Estimate.OUTPUT_TOKENS) == 20


def test_prefixes_are_followed_as_far_as_they_were_sent_before() -> None:
    site = Site()
    for _ in range(50):
        site.answer(site.context())
    assert len(site.learning.outputs) == 2, "the client's and the model's"
    for _ in range(50):
        site.answer(site.context(held=2), output_tokens=90)
    assert len(site.learning.outputs) == 4, "and one block, and two"
    expect = site.learning.outputs.expect
    assert expect("m", "openai-completions", "", CHAIN, None) == pytest.approx(90, abs=1)
    other = b"\xff" * HASH_BYTES
    assert expect("m", "openai-completions", "", other, None) < 20


def test_of_very_many_answers_a_share_is_learnt_from() -> None:
    site = Site()
    for _ in range(3 * LEARNT):
        site.answer(site.context(), reported=2000)
    assert site.count(Estimate.PROMPT_TOKENS) == 3 * LEARNT
    site.learning.refresh()
    for _ in range(LEARNT):
        site.answer(site.context(), reported=2000)
    assert site.count(Estimate.PROMPT_TOKENS) == 3 * LEARNT + LEARNT // 4
    site.learning.refresh()
    site.learning.refresh()
    site.answer(site.context(), reported=2000)
    assert site.count(Estimate.PROMPT_TOKENS) == 3 * LEARNT + LEARNT // 4 + 1


def test_a_slow_backend_is_found_out_and_written_into_its_ledger() -> None:
    site = Site()
    for _ in range(60):
        for backend, seconds in (("a", 0.2), ("b", 0.8)):
            context = site.context(backend, prompt_tokens=2000)
            site.now += seconds
            assert context.lease is not None
            context.lease.first_token()
            site.learning.first_token(context.lease)
            site.now += seconds / 2
            site.answer(context)
    site.learning.refresh()
    assert site.loads["a"].prefill_rate > 2 * site.loads["b"].prefill_rate
    assert site.loads["a"].step_seconds < site.loads["b"].step_seconds
    assert site.count(Estimate.FIRST_TOKEN) == 120


def test_backends_that_differ_by_little_are_equal() -> None:
    site = Site()
    for _ in range(60):
        for backend, seconds in (("a", 0.40), ("b", 0.42)):
            context = site.context(backend, prompt_tokens=2000)
            site.now += seconds
            assert context.lease is not None
            context.lease.first_token()
            site.learning.first_token(context.lease)
            site.answer(context)
    site.learning.refresh()
    assert site.loads["a"].prefill_rate == site.loads["b"].prefill_rate != 10_000.0


def test_cached_tokens_that_are_left_out_are_none_where_they_were_told_before() -> None:
    site = Site()
    silent, told, after = (site.context() for _ in range(3))
    elsewhere = site.context("b")
    site.answer(silent, reported=1000)
    site.answer(told, reported=1000, cached=800)
    site.answer(after, reported=1000)
    site.answer(elsewhere, reported=1000)
    records = [context.record for context in (silent, told, after, elsewhere)]
    assert [record.reported_cached_tokens for record in records] == [None, 800, 0, None]
    assert site.count(Estimate.CACHED_TOKENS) == 2


def test_an_engine_that_lost_its_cache_is_forgotten() -> None:
    site = Site()
    site.answer(site.context(), reported=1000, cached=900)
    assert site.index.match(CHAIN).blocks == {"a": 8}
    for _ in range(50):
        site.answer(site.context(), reported=1000, cached=0)
        if not site.index.match(CHAIN).blocks:
            return
    raise AssertionError("the index still believes in it")


def test_a_capacity_is_stated_anew_when_tokens_turn_out_to_be_larger() -> None:
    site = Site()
    for _ in range(50):
        site.answer(site.context("b"), reported=2000)
    site.learning.refresh()
    # Half as many bytes a token: half as much text fits.
    held = site.index.stats().backends["a"].capacity_tokens
    assert held == pytest.approx(8000, rel=0.1)


def test_a_backend_that_is_gone_teaches_nothing() -> None:
    site = Site()
    context = site.context()
    site.learning.backend_removed("a")
    assert context.lease is not None
    site.learning.first_token(context.lease)
    site.answer(context)
    site.learning.refresh()
    assert site.loads["a"].prefill_rate == 10_000.0


def test_backends_of_another_model_are_not_held_against_it() -> None:
    site = Site()
    site.learning.backend_changed("b", "other", 16_000.0)
    for _ in range(60):
        context = site.context("a", prompt_tokens=2000)
        site.now += 0.8
        assert context.lease is not None
        context.lease.first_token()
        site.learning.first_token(context.lease)
        site.answer(context)
    site.learning.refresh()
    assert site.loads["a"].prefill_rate < 5000
    assert site.loads["b"].prefill_rate == 10_000.0


def test_a_cache_that_is_gone_is_found_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    for _ in range(3):
        site.answer(site.context(), reported=1000, cached=900)
    assert site.index.match(CHAIN).blocks
    assert not caplog.records
    for _ in range(10):
        if site.index.match(CHAIN).blocks:
            site.answer(site.context(), reported=1000, cached=0)
    [record] = caplog.records
    assert record.getMessage().startswith("backend a reports nothing cached")
    assert not site.index.match(CHAIN).blocks
