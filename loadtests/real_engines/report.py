"""What is printed: tables, and checks that a run has to pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.admin.views import BackendView
from loadtests.real_engines.arm import Arm
from loadtests.real_engines.comparison import add, compare, predicted


@dataclass(slots=True, frozen=True)
class Check:
    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'}  {self.text}"


def fleet_table(backends: Sequence[BackendView]) -> str:
    """What the gateway found out about its engines."""
    head = ("backend", "kind", "state", "models (longest)", "KV tokens", "block")
    rows = [
        (
            view.id,
            f"{view.kind}",
            f"{view.state}",
            ", ".join(f"{name} ({view.max_model_len.get(name)})" for name in view.models),
            f"{view.capacity_tokens}",
            f"{view.block_size}",
        )
        for view in backends
    ]
    return _table(head, rows)


def engines_table(arms: Sequence[Arm]) -> str:
    """The engines' own counters."""
    head = ("policy", "backend", "turns", "prompt tokens", "cached", "hit ratio")
    rows = [
        (
            arm.policy,
            backend,
            f"{len(arm.at(backend))}",
            f"{counted.queries:,}",
            f"{counted.hits:,}",
            f"{counted.hits / max(counted.queries, 1):.1%}",
        )
        for arm in arms
        for backend, counted in arm.counters.items()
    ]
    return _table(head, rows)


def turns_table(arm: Arm) -> str:
    """By turn: what the gateway expected to be cached, and what was."""
    head = ("turn", "turns", "prompt tokens", "matched", "cached", "cached/matched")
    rows = []
    numbers = sorted({exchange.turn for exchange in arm.exchanges})
    for name, numbers_in_row in [*((f"{n + 1}", {n}) for n in numbers), ("all", set(numbers))]:
        turns = [exchange for exchange in arm.exchanges if exchange.turn in numbers_in_row]
        matched = sum(exchange.matched for exchange in turns)
        cached = sum(exchange.cached for exchange in turns)
        prompt = sum(len(exchange.prompt) for exchange in turns)
        ratio = f"{cached / matched:.2f}" if matched else ""
        rows.append((name, f"{len(turns)}", f"{prompt:,}", f"{matched:,}", f"{cached:,}", ratio))
    return _table(head, rows)


def comparison_table(arm: Arm) -> str:
    """From matched to cached tokens, over the turns that followed the one before them."""
    pairs = list(arm.stayed())
    total = add(compare(before, after) for before, after in pairs)
    terms = [
        ("matched by the gateway", total.matched),
        ("its unfinished last blocks", total.our_blocks),
        ("four bytes a token against the model's tokenizer", total.ratio),
        ("answers, cached and found again", total.answer),
        ("the engine's unfinished last blocks", total.engine_blocks),
        ("cached, as the engine tells", total.cached),
    ]
    count = max(len(pairs), 1)
    rows = [(name, f"{tokens:,.0f}", f"{tokens / count:,.0f}") for name, tokens in terms]
    return _table((f"{len(pairs)} turns", "tokens", "a turn"), rows)


def checks(control: Arm, arm: Arm, block_sizes: Mapping[str, int | None]) -> Iterator[Check]:
    """Args:
    control: of a policy that knows nothing of prefixes.
    """
    strays = arm.strays()
    yield Check(not strays, f"{_home(arm)} second and later turns went home")
    for stray in strays:
        place = f"{stray.conversation}, turn {stray.turn + 1}"
        yield Check(False, f"{place}: at {stray.backend} ({stray.reason})")
    idle = [backend for backend in arm.counters if not arm.at(backend)]
    yield Check(not idle, "every engine had conversations")
    for one in (control, arm):
        equal = all(one.told(backend) == counted for backend, counted in one.counters.items())
        yield Check(equal, f"{one.policy}: engines' counters equal the sums over their answers")
    told = arm.estimate
    yield Check(
        told.cached == arm.hits,
        f"the gateway's metrics count the same {told.cached:,} cached tokens; it expected "
        f"{told.error:.0f} more or less a request, in the engines' own tokens",
    )
    sizes = [(pair, block_sizes[pair[1].backend]) for pair in arm.stayed()]
    exact = sum(
        size is not None and predicted(before, after, size) == after.cached
        for (before, after), size in sizes
    )
    yield Check(
        exact == len(sizes),
        f"{exact} of {len(sizes)} turns found cached exactly what block arithmetic says",
    )
    yield Check(
        arm.hits > control.hits,
        f"{arm.hits:,} prefix hits; under {control.policy} {control.hits:,}, where "
        f"{_home(control)} turns went home",
    )


def _home(arm: Arm) -> str:
    later = sum(exchange.turn > 0 for exchange in arm.exchanges)
    return f"{later - len(arm.strays())} of {later}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    numeric = [all(row[place][:1] in "-0123456789" for row in rows) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in (head, *rows)
    )
