"""Small traces, fleets and engines whose times can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.types import Decision, Reason
from loadtests.replay.arm import PLAIN, Arm
from loadtests.replay.fleet import Fleet
from loadtests.replay.trace import Trace, TraceRequest
from loadtests.sim.profile import Memory, Profile, Timing
from policies.base import Candidate, Params, RouteRequest

BLOCK = 512
PREFILL = 0.001
STEP = 0.01

PROFILE = Profile(
    model="m",
    # Prefill costs 1 ms a token anywhere, a decode step 10 ms however many streams there are.
    timing=Timing(
        base=STEP,
        per_prefill_token=PREFILL,
        attention_scale=1e12,
        per_stream=0.0,
        per_context_token=0.0,
    ),
    memory=Memory(
        device_bytes=1, utilization=1, weight_bytes=0, activation_bytes=0, kv_bytes_per_token=1
    ),
    kv_tokens=64 * BLOCK,
    max_model_len=16 * BLOCK,
    max_num_batched_tokens=BLOCK * 4,
)


def fleet(engines: int = 1, **changes: object) -> Fleet:
    return Fleet(PROFILE.replace(**changes), (1.0,) * engines)


def request(
    arrival: float, blocks: Sequence[int] = (), tokens: int | None = None, **more: object
) -> TraceRequest:
    """One with 100 tokens after its blocks, unless `tokens` says otherwise."""
    if tokens is None:
        tokens = len(blocks) * BLOCK + 100
    settings: dict[str, object] = {"output_tokens": 11} | more
    return TraceRequest(arrival, tokens, blocks=tuple(blocks), **settings)


def trace(*requests: TraceRequest, **more: object) -> Trace:
    return Trace("made", requests, "digest", BLOCK, **more)


class Scripted:
    """Sends requests where it is told to, and writes down what it is shown."""

    name = "scripted"
    params_type = Params
    late_binding = False

    def __init__(self, params: Params) -> None:
        self.params = params
        self.seen: list[RouteRequest] = []
        self.decoding: list[list[int]] = []

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        self.seen.append(request)
        self.decoding.append([candidate.decoding for candidate in candidates])
        turn = (len(self.seen) - 1) % len(candidates)
        return Decision(candidates[turn].id, Reason.ROTATION)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        pass

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        return [{} for _ in candidates]


ROTATE = Arm("scripted", Scripted, Params(), PLAIN)
