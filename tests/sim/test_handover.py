from __future__ import annotations

import pytest

from loadtests.sim.engine import Engine
from loadtests.sim.handover import Handover
from loadtests.sim.network import Network
from loadtests.sim.sequence import Request, State
from loadtests.sim.timeline import VirtualTimeline
from tests.sim.support import TIMING, Heard, profile, units

KV_BYTES = 100.0


class Told(Heard):
    def __init__(self) -> None:
        super().__init__()
        self.prefilled: float | None = None

    def on_prefilled(self, now: float) -> None:
        self.prefilled = now


class Pair:
    """A prefill and a decode engine, with a network that moves 1,000 tokens a second."""

    def __init__(
        self, *, lease: float = 30.0, decode_tokens: int = 64 * 16, pushed: bool = False
    ) -> None:
        self.timeline = VirtualTimeline()
        self.prefill = Engine(profile(kv_lease=lease), self.timeline)
        self.decode = Engine(profile(kv_tokens=decode_tokens), self.timeline)
        self.network = Network(1000 * KV_BYTES, setup=0.0, layers=10)
        self.told = Told()
        self.pushed = pushed

    def hand_over(self, tokens: int, output: int, prefix: list[int] | None = None) -> Handover:
        return Handover(
            Request(tokens, output, prefix or []),
            self.prefill,
            self.decode,
            self.network,
            self.timeline,
            self.told,
            kv_bytes=KV_BYTES,
            pushed=self.pushed,
        )


def test_the_first_token_comes_after_prefill_transfer_and_one_step() -> None:
    pair = Pair()
    handover = pair.hand_over(100, 4)
    pair.timeline.run()
    prefilled = 0.01 + TIMING.prefill(0, 100)
    assert pair.told.prefilled == pytest.approx(prefilled)
    moved = prefilled + 0.1
    assert pair.told.tokens == pytest.approx([moved + 0.01 + TIMING.prefill(99, 1)])
    assert pair.told.finish is not None
    assert handover.moved == 100
    assert pair.decode.counters.received_tokens == 99
    assert pair.decode.counters.prefilled_tokens == 1
    assert pair.decode.counters.generated_tokens == 4


def test_both_engines_hold_the_prompt_afterwards_and_nothing_is_in_use() -> None:
    pair = Pair()
    prefix = units(1, 6)
    pair.hand_over(100, 4, prefix)
    pair.timeline.run()
    for engine in (pair.prefill, pair.decode):
        assert engine.cache.used == 0
        assert engine.cache.match(prefix, 6) == 6
    assert pair.prefill.kept == 0


def test_only_what_the_decode_engine_lacks_is_moved() -> None:
    pair = Pair()
    prefix = units(1, 6)
    pair.decode.submit(Request(64, 1, prefix[:4]), Heard())
    pair.timeline.run()
    handover = pair.hand_over(100, 4, prefix)
    pair.timeline.run()
    assert handover.moved == 100 - 64
    assert pair.network.sent == (100 - 64) * KV_BYTES


def test_blocks_are_kept_until_they_are_fetched() -> None:
    pair = Pair()
    pair.hand_over(100, 4)
    prefilled = 0.01 + TIMING.prefill(0, 100)
    pair.timeline.run(prefilled + 0.05)
    assert (pair.prefill.kept, pair.prefill.cache.used) == (1, 7)
    pair.timeline.run(prefilled + 0.11)
    assert (pair.prefill.kept, pair.prefill.cache.used) == (0, 0)


def test_when_the_lease_is_over_the_decode_engine_computes_the_prompt_itself() -> None:
    """The decode engine is full for longer than the lease; with a longer one it is not computed."""
    computed = []
    for lease in (1.0, 100.0):
        pair = Pair(lease=lease, decode_tokens=8 * 16)
        pair.decode.submit(Request(100, 28), Heard())
        for _ in range(20):
            pair.decode.submit(Request(100, 28), Heard())
        handover = pair.hand_over(100, 4)
        pair.timeline.run()
        assert handover.lost is (lease == 1.0)
        assert pair.prefill.counters.expired == (1 if lease == 1.0 else 0)
        assert pair.told.finish is not None
        assert pair.prefill.cache.used == pair.decode.cache.used == 0
        computed.append(pair.decode.counters.prefilled_tokens)
    assert computed[0] - computed[1] == 99


def test_pushed_layers_are_sent_while_the_prompt_is_computed() -> None:
    firsts = []
    for pushed in (False, True):
        pair = Pair(pushed=pushed)
        pair.hand_over(200, 2)
        pair.timeline.run()
        firsts.append(pair.told.tokens[0])
    assert firsts[0] - firsts[1] == pytest.approx(0.2 * 0.9), "one layer of ten is left"


def test_a_pushed_one_holds_blocks_at_the_decode_engine_from_the_begin() -> None:
    held = []
    for pushed in (False, True):
        pair = Pair(pushed=pushed)
        pair.hand_over(100, 2)
        pair.timeline.run(0.05)
        held.append((pair.decode.receiving, pair.decode.cache.used))
        pair.timeline.run()
    assert held == [(0, 0), (1, 7)]


@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize("at", [0.005, 0.05, 0.16, 0.25, 0.4])
def test_an_abort_in_any_phase_leaves_nothing_behind(at: float, pushed: bool) -> None:
    pair = Pair(pushed=pushed)
    handover = pair.hand_over(100, 200)
    pair.timeline.run(at)
    handover.abort()
    pair.timeline.run()
    assert pair.told.finish is None
    for engine in (pair.prefill, pair.decode):
        assert (engine.cache.used, engine.kept, engine.receiving, engine.running) == (0, 0, 0, 0)


def test_transfers_to_one_engine_wait_for_each_other() -> None:
    network = Network(100.0, setup=0.5)
    assert network.send("a", "x", 100, now=0.0) == pytest.approx(1.5)
    assert network.send("b", "x", 100, now=0.0) == pytest.approx(3.0)
    assert network.send("b", "y", 100, now=0.0) == pytest.approx(4.5)
    assert network.send("c", "z", 100, now=0.0) == pytest.approx(1.5)


def test_what_never_comes_can_be_given_up() -> None:
    pair = Pair()
    waiting = []
    heard = Heard()
    sequence = pair.decode.submit(Request(100, 4), heard, fetch=waiting.append)
    pair.timeline.run()
    assert waiting == [sequence]
    assert sequence.state is State.RECEIVING
    pair.decode.received(sequence, 0)
    pair.timeline.run()
    assert heard.finish is not None
    assert pair.decode.counters.prefilled_tokens == 100
