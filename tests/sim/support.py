"""A small engine in virtual time, and a listener that writes down what it hears."""

from __future__ import annotations

from loadtests.sim.engine import Engine
from loadtests.sim.profile import Memory, Profile, Timing
from loadtests.sim.report import Step
from loadtests.sim.sequence import Request, Sequence
from loadtests.sim.timeline import VirtualTimeline

TIMING = Timing(
    base=0.01,
    per_prefill_token=0.001,
    attention_scale=1000,
    per_stream=0.002,
    per_context_token=0.00001,
)
MEMORY = Memory(
    device_bytes=1000, utilization=1, weight_bytes=0, activation_bytes=0, kv_bytes_per_token=1
)


def profile(**changes: object) -> Profile:
    settings: dict[str, object] = {
        "kv_tokens": 64 * 16,
        "max_model_len": 32,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 8,
    }
    return Profile(model="m", timing=TIMING, memory=MEMORY, **(settings | changes))


class Heard:
    """When the tokens came and when the end."""

    def __init__(self) -> None:
        self.tokens: list[float] = []
        self.finish: float | None = None

    def on_first_token(self, now: float) -> None:
        assert not self.tokens
        self.tokens.append(now)

    def on_token(self, now: float) -> None:
        self.tokens.append(now)

    def on_finish(self, now: float) -> None:
        assert self.finish is None
        self.finish = now


class Bench:
    """An engine with its timeline.

    Attributes:
        steps: what it reported, with the running requests and used blocks of that moment.
    """

    def __init__(self, settings: Profile, *, step_by_step: bool = True) -> None:
        self.timeline = VirtualTimeline()
        self.steps: list[tuple[Step, int, int]] = []
        self.engine = Engine(settings, self.timeline, step_by_step=step_by_step, on_step=self._note)

    def _note(self, step: Step) -> None:
        self.steps.append((step, self.engine.running, self.engine.cache.used))

    def submit(
        self, tokens: int, output: int, prefix: list[int] | None = None
    ) -> tuple[Sequence, Heard]:
        heard = Heard()
        return self.engine.submit(Request(tokens, output, prefix or []), heard), heard

    def run(self, until: float = float("inf")) -> None:
        self.timeline.run(until)


def units(name: int, number: int) -> list[int]:
    """Hashes of `number` units of a prompt; those of another name differ."""
    return [name * 1000 + unit for unit in range(number)]
