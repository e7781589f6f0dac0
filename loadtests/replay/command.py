"""The replay as its command line asks for it."""

from __future__ import annotations

import argparse

from gateway.config import ConfigError, Settings, load
from loadtests.replay import arm, report, source
from loadtests.replay.comparison import Plan, compare
from loadtests.replay.fleet import Fleet, SlowDown
from loadtests.replay.metrics import Slo
from loadtests.replay.player import Mode
from loadtests.sim import profile as profiles

ENGINES = 8


def replay(arguments: argparse.Namespace) -> int:
    """Replay, print the tables, and write the JSON.

    Raises:
        ConfigError: the trace, a policy or an option is wrong.
    """
    settings = Settings() if arguments.config is None else load(arguments.config)
    plan = Plan(
        fleet=_fleet(arguments),
        arms=[arm.find(name, settings.scheduling, settings.policy) for name in arguments.policy],
        loads=arguments.load,
        seeds=range(1, arguments.seeds + 1),
        modes=list(Mode) if arguments.mode == "both" else [Mode(arguments.mode)],
        slo=Slo(arguments.slo_ttft, arguments.slo_ttft_factor, arguments.slo_tpot),
        capacity=arguments.capacity,
        processes=arguments.jobs,
    )
    comparison = compare(source.find(arguments.trace), plan)
    print(report.text(comparison, plan))
    if arguments.json is not None:
        arguments.json.write_bytes(report.json(comparison, plan))
    return 0


def _fleet(arguments: argparse.Namespace) -> Fleet:
    changes = {
        name: getattr(arguments, name)
        for name in ("kv_tokens", "max_running_tokens", "max_num_batched_tokens")
        if getattr(arguments, name) is not None
    }
    profile = profiles.load(arguments.profile).replace(**changes)
    speeds = arguments.speed or [1.0] * (arguments.engines or ENGINES)
    if arguments.engines not in (None, len(speeds)):
        raise ConfigError(f"--speed: {len(speeds)} values for {arguments.engines} engines")
    slow_downs = tuple(_slow_down(text, len(speeds)) for text in arguments.slow_at)
    return Fleet(profile, tuple(speeds), slow_downs)


def _slow_down(text: str, engines: int) -> SlowDown:
    try:
        engine, seconds, factor = text.split(":")
        slow = SlowDown(int(engine), float(seconds), float(factor))
    except ValueError:
        raise ConfigError(f"--slow-at {text}: expected ENGINE:SECONDS:FACTOR") from None
    if not (0 <= slow.engine < engines and slow.seconds >= 0 and slow.factor > 0):
        raise ConfigError(
            f"--slow-at {text}: engines are 0 to {engines - 1}, seconds not negative, factors"
            " above 0"
        )
    return slow
