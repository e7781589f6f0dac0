"""What each part of routing and scheduling is worth, as questions with variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loadtests.replay.incidents import Kind
from loadtests.replay.player import Mode
from loadtests.rivals.registry import RIVALS
from loadtests.suite.plan import HALF_SLOW, OURS, SLOWED
from loadtests.suite.variants import (
    KV_BLOCKS,
    Ablation,
    Variant,
    befalls,
    cache,
    changed,
    engines,
    named,
)

DEFAULT = Variant("as it is")
GOOD_RIVALS = ("lmetric", "minimum_ttft", "llm_d_sticky")
"""The ones that are near the best on some workload."""
BESIDE = [Variant("ours"), *(Variant(name, name) for name in GOOD_RIVALS)]

_Change = Callable[[Variant], Variant]


def _each(changes: Sequence[_Change], variants: Sequence[Variant]) -> list[list[Variant]]:
    return [[change(variant) for variant in variants] for change in changes]


def _grid() -> list[Variant]:
    orders, gates = ("deadline", "arrival", "work"), ("null", "0.3", "0.5", "1", "2")
    return [
        Variant(
            f"gate {gate}, by {order}",
            f"{OURS}?scheduling.gate={gate}&scheduling.order={order}",
        )
        for gate in gates
        for order in (orders if gate != "null" else orders[:1])
    ]


def _with_gate() -> list[list[Variant]]:
    return [[Variant(name, name), Variant(f"{name}, gated", f"{name}+gate")] for name in RIVALS]


_WITHOUT_LEARNING = "knows.rates=false&knows.capacity=false&knows.output=typical"
_LEARNS = [
    DEFAULT,
    Variant("speeds not learnt", f"{OURS}?knows.rates=false"),
    Variant("cache sizes not learnt", f"{OURS}?knows.capacity=false"),
    Variant("nothing learnt", f"{OURS}?{_WITHOUT_LEARNING}"),
]
_INCIDENTS = [
    befalls("a crash and a return", (Kind.CRASH, 0.4), (Kind.JOIN, 0.6)),
    befalls("a drain", (Kind.DRAIN, 0.5)),
    befalls("an engine more", (Kind.JOIN, 0.5)),
    befalls("a flush", (Kind.FLUSH, 0.5)),
]

ABLATIONS: Mapping[str, Ablation] = {
    "theta": Ablation(
        "What is the congestion price worth, and its cap?",
        [[DEFAULT, *changed(theta_max=[0, 1, 4, 16, 256])]],
        loads=(0.7, 1.0, 1.15, 1.3),
    ),
    "terms": Ablation(
        "What are the other terms of the cost worth?",
        [[DEFAULT, *changed(omega=[0, 0.5, 2], eta=[0.02, 0.1, 0.5], spoil=[0, 1, 16])]],
    ),
    "pace": Ablation(
        "What is it worth to hold prefills for the sake of streams, and how many may be spoilt?",
        [
            [
                DEFAULT,
                *changed(scheduling__pace=[None], scheduling__pace_tolerance=[0, 0.2, 1, 4]),
            ]
        ],
    ),
    "gate": Ablation(
        "How much should be sent ahead to a backend, and what of the rest goes first?",
        [[DEFAULT, *_grid()]],
        loads=(1.0, 1.3),
    ),
    "index": Ablation(
        "What does it cost to be wrong about the size of the caches, and does it get better?",
        [
            [
                DEFAULT,
                *(
                    Variant(
                        f"{size:g} times the size{', not learnt' if not learns else ''}",
                        f"{OURS}?knows.index_capacity={size}&knows.capacity={str(learns).lower()}",
                    )
                    for size in (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
                    for learns in (True, False)
                ),
                Variant("no index", f"{OURS}?knows.index=false"),
            ]
        ],
    ),
    "booking": Ablation(
        "Is a prompt to count as cached from its dispatch on, or from its first token?",
        [[DEFAULT, Variant("first token", f"{OURS}?knows.booking=first_token")]],
    ),
    "block": Ablation(
        "How coarse may the blocks be by which prompts are compared?",
        [[DEFAULT, *changed(knows__block=[2, 4, 8])]],
    ),
    "key": Ablation(
        "What does a whole tree of prefixes know beyond the first blocks?",
        [
            [
                DEFAULT,
                Variant("first block", "bounded_load+gate"),
                Variant("first two blocks", "bounded_load_two_blocks+gate"),
            ]
        ],
    ),
    "engines": Ablation(
        "Does it hold for small and large fleets?",
        _each([engines(count) for count in (2, 4, 8, 16, 32)], BESIDE),
        loads=(1.0,),
    ),
    "cache": Ablation(
        "Does it hold for small caches?",
        _each([cache(blocks) for blocks in (800, 2000, KV_BLOCKS)], BESIDE),
        loads=(0.7, 1.0),
    ),
    "unequal": Ablation(
        "What is it worth to learn how fast each backend is?",
        _each([named(HALF_SLOW), named(SLOWED)], [*_LEARNS[:2], *BESIDE[1:]]),
        loads=(0.7, 0.9),
    ),
    "incidents": Ablation(
        "What happens when an engine goes, comes, or loses its cache?",
        _each(_INCIDENTS, [*BESIDE, _LEARNS[2]]),
        loads=(0.9,),
    ),
    "learning": Ablation("What is it worth to learn, engines being alike?", [_LEARNS]),
    "output": Ablation(
        "What is it worth to expect the right length of answers?",
        [[DEFAULT, *changed(knows__output=["typical", "told"])]],
    ),
    "shedding": Ablation(
        "Is it better to refuse early what will be late?",
        [[DEFAULT, *changed(scheduling__shed_factor=[1, 1.5, 2, 4])]],
        loads=(1.3, 1.5),
    ),
    "classes": Ablation(
        "Is a class to go by what a prompt brings in work, or by its length?",
        [[DEFAULT, *changed(knows__classes=["length"])]],
    ),
    "think": Ablation(
        "Does it hold where people wait for answers before they ask again?",
        [
            [
                replace(variant, label=f"{mode} loop, {variant.label}", mode=mode)
                for variant in BESIDE
            ]
            for mode in Mode
        ],
        loads=(1.0, 1.3),
    ),
    "rivals": Ablation(
        "What does the gateway's scheduling do for the rivals' rules?",
        _with_gate(),
    ),
}
