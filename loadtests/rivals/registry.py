"""The rivals by name. Round robin is among the gateway's own policies."""

from __future__ import annotations

from loadtests.rivals.bounded_load import BoundedLoad, BoundedLoadTwoBlocks
from loadtests.rivals.dualmap import DualMap
from loadtests.rivals.dynamo import Dynamo
from loadtests.rivals.least_in_flight import LeastInFlight
from loadtests.rivals.least_prefill_work import LeastPrefillWork
from loadtests.rivals.llm_d_blend import LlmdBlend
from loadtests.rivals.llm_d_sticky import LlmdSticky
from loadtests.rivals.lmetric import LMetric
from loadtests.rivals.minimum_ttft import MinimumTtft
from loadtests.rivals.preble import Preble
from loadtests.rivals.random_choice import RandomChoice
from loadtests.rivals.sglang_cache_aware import SglangCacheAware, SglangCacheAwareLibrary
from loadtests.rivals.vllm_load_aware import VllmLoadAware
from loadtests.rivals.vllm_prefix_aware import VllmPrefixAware
from policies.base import Policy

_RIVALS: tuple[type[Policy], ...] = (
    RandomChoice,
    LeastInFlight,
    BoundedLoad,
    BoundedLoadTwoBlocks,
    VllmPrefixAware,
    VllmLoadAware,
    SglangCacheAware,
    SglangCacheAwareLibrary,
    LlmdBlend,
    LlmdSticky,
    Dynamo,
    Preble,
    DualMap,
    LMetric,
    LeastPrefillWork,
    MinimumTtft,
)

RIVALS: dict[str, type[Policy]] = {rival.name: rival for rival in _RIVALS}
