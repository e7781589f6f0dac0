"""The command line of the simulated engine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.config import ConfigError
from gateway.types import Role
from loadtests.sim import profile as profiles
from loadtests.sim.legs import Protocol
from loadtests.sim.network import GBPS
from loadtests.sim.profile import Profile

if TYPE_CHECKING:
    from loadtests.sim.half import HalfOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=int, default=8000, help="port to listen on (default 8000)")
    add(
        "--profile",
        default=profiles.DEFAULT,
        metavar="NAME|FILE",
        help=f"timing and memory of the engine (default {profiles.DEFAULT})",
    )
    add(
        "--model",
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="served names of the model (default: the profile's)",
    )
    add("--lora", nargs="+", default=[], metavar="NAME", help="names of LoRA adapters")
    add("--speed", type=_positive, default=1.0, help="how many times as fast (default 1)")
    add("--kv-tokens", type=int, help="size of the KV cache in tokens")
    add("--max-running-tokens", type=int, help="of those, what requests can use while they run")
    add("--max-model-len", type=int, help="longest sequence, prompt and output together")
    add("--max-num-batched-tokens", type=int, help="token budget of a step")
    add("--max-num-seqs", type=int, help="most sequences in a step")
    add("--long-prefill-token-threshold", type=int, help="most prompt tokens of one in a step")
    add("--no-chunked-prefill", action="store_true", help="compute each prompt in one step")
    add("--no-prefix-caching", action="store_true", help="compute every prompt from its start")
    add(
        "--no-prompt-tokens-details",
        action="store_true",
        help="do not tell cached tokens in usage",
    )
    add(
        "--answer-tokens",
        type=int,
        default=256,
        help="length of an answer that the client does not limit (default 256)",
    )
    add("--role", choices=["unified", "prefill", "decode"], default="unified", help="in a pair")
    add("--pd", choices=list(Protocol), help="how prefill and decode engines hand caches over")
    add("--link-gbps", type=_positive, default=100.0, help="between engines (default 100 Gbit/s)")
    add("--overlap-transfer", action="store_true", help="send each layer once it is computed")
    add("--kv-lease", type=_positive, help="seconds a prefill is kept to be fetched (default 30)")
    add(
        "--pd-timeout",
        type=_positive,
        default=300.0,
        help="seconds that one half waits for the other (default 300)",
    )
    add(
        "--kv-load-failure-policy",
        choices=["fail", "recompute"],
        default="fail",
        help="what a decode engine does with a cache that cannot be read (default fail)",
    )
    add("--seed", type=int, default=0, help="of the answers' texts (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop.

    Raises:
        ConfigError: the profile or an option is wrong.
    """
    # Late, because the gateway's command reads this module for the options alone.
    import uvloop

    from loadtests.sim.server import Options, serve

    profile = profile_from(arguments)
    options = Options(
        names=tuple(arguments.model or [profile.model]),
        adapters=tuple(arguments.lora),
        answer_tokens=arguments.answer_tokens,
        show_cached=not arguments.no_prompt_tokens_details,
        seed=arguments.seed,
        half=_half(arguments),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(profile, options, arguments.host, arguments.port))
    return 0


def _half(arguments: argparse.Namespace) -> HalfOptions | None:
    from loadtests.sim.half import HalfOptions

    role = Role(arguments.role)
    if (role is Role.UNIFIED) is not (arguments.pd is None):
        raise ConfigError("--role prefill or decode and --pd go together")
    if role is Role.UNIFIED:
        return None
    return HalfOptions(
        role,
        Protocol(arguments.pd),
        arguments.host,
        arguments.port,
        link=arguments.link_gbps * GBPS,
        patience=arguments.pd_timeout,
        recompute=arguments.kv_load_failure_policy == "recompute",
        overlaps=arguments.overlap_transfer,
    )


def profile_from(arguments: argparse.Namespace) -> Profile:
    """The chosen profile with the options over it.

    Raises:
        ConfigError: there is no such profile, or the options contradict each other.
    """
    profile = profiles.load(arguments.profile)
    names = (
        "kv_tokens",
        "max_running_tokens",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "long_prefill_token_threshold",
        "kv_lease",
    )
    changes = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if "max_model_len" not in changes:
        # A sequence cannot be longer than the cache; only a wish for one is an error.
        room = [changes[name] for name in ("kv_tokens", "max_running_tokens") if name in changes]
        whole = min(room, default=profile.max_model_len) // profile.block_size * profile.block_size
        changes["max_model_len"] = min(profile.max_model_len, whole)
    if arguments.no_chunked_prefill and "max_num_batched_tokens" not in changes:
        longest = changes.get("max_model_len", profile.max_model_len)
        changes["max_num_batched_tokens"] = max(profile.max_num_batched_tokens, longest)
    return profile.replace(
        **changes,
        timing=msgspec.to_builtins(profile.timing.faster(arguments.speed)),
        chunked_prefill=profile.chunked_prefill and not arguments.no_chunked_prefill,
        prefix_caching=profile.prefix_caching and not arguments.no_prefix_caching,
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.sim", description="A simulated engine that looks like vLLM."
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except ConfigError as error:
        print(f"sim-engine: {error}", file=sys.stderr)
        return 2
