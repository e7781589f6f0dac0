"""All that the figures depend on."""

from __future__ import annotations

import platform
from typing import Any

import msgspec
import yaml

from loadtests.replay.capacity import PRECISION, TARGET
from loadtests.replay.metrics import MAX_WARMUP, WARMUP_SHARE, Slo
from loadtests.suite.plan import EQUAL, UNEQUAL_LOADS, Plan, fleet_of


def parameters(plan: Plan) -> list[str]:
    """A block of YAML, folded."""
    facts: dict[str, Any] = {
        "prefixgate": plan.version.number,
        "code": plan.version.code,
        "python": platform.python_version(),
        "traces": {
            workload.name: [
                {
                    "seed": seed,
                    "name": trace.name,
                    "sha256": trace.digest,
                    "requests": len(trace.requests),
                    "seconds": round(trace.span, 1),
                }
                for seed, trace in enumerate(workload.traces, 1)
            ]
            for workload in plan.workloads
        },
        "slo": Slo(),
        "capacity": {"share_within_slo": TARGET, "precision": PRECISION},
        "warm_up": {"share": WARMUP_SHARE, "max_seconds": MAX_WARMUP},
    }
    if plan.workloads:
        trace = plan.workloads[0].traces[0]
        facts["engines"] = {
            name: {"speeds": fleet.speeds, "slow_downs": fleet.slow_downs}
            for name in (EQUAL, *UNEQUAL_LOADS)
            for fleet in [fleet_of(name, trace)]
        }
        facts["engine"] = fleet_of(EQUAL, trace).profile
    facts["policies"] = {
        arm.name: {"policy": arm.params, "knows": arm.knowledge} for arm in plan.unequal_arms()
    }
    facts["scheduling"] = {
        "gateway": next((arm.scheduling for arm in plan.arms if arm.scheduling.gate), None),
        "rivals": "everything is sent on at once",
    }
    text = yaml.safe_dump(msgspec.to_builtins(facts), sort_keys=False, width=100)
    head = ["<details>", "<summary>all parameters</summary>", "", "```yaml"]
    return [*head, text + "```", "", "</details>"]
