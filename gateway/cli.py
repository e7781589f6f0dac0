"""The `prefixgate` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gateway.config import BackendConfig, ConfigError, Settings, convert, load
from gateway.secrets import MIN_KEY, hash_key, new_key
from gateway.version import VERSION

MAX_WORKERS = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Returns:
        The exit code: 0, or 2 when the command line or the config is wrong; `serve` has more.
    """
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(words)
    arguments.words = words
    try:
        code: int = arguments.run(arguments)
    except ConfigError as error:
        print(f"prefixgate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixgate", description="Prefix-aware reverse proxy for LLM inference servers."
    )
    parser.add_argument("--version", action="version", version=f"prefixgate {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the gateway")
    serve.add_argument("--config", type=Path, metavar="FILE", help="YAML settings")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8080)")
    serve.add_argument(
        "--backend", action="append", metavar="URL", help="an engine; may be given several times"
    )
    serve.add_argument("--policy", metavar="NAME", help="routing policy (default prefix_affinity)")
    serve.add_argument(
        "--access-log", metavar="FILE", help='one JSON line a request; "-" is stdout'
    )
    serve.add_argument(
        "--workers",
        type=_workers,
        default=1,
        metavar="N",
        help="processes (default 1; needs Redis)",
    )
    serve.add_argument("--as-worker", help=argparse.SUPPRESS)  # how a supervisor starts them
    serve.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check-config", help="say whether a settings file is right")
    check.add_argument("config", type=Path, metavar="FILE")
    check.set_defaults(run=_check)

    key = commands.add_parser(
        "hash-key", help="make an API key or an admin token, and the hash that settings have of it"
    )
    key.add_argument(
        "--stdin", action="store_true", help="hash the key on standard input instead of a new one"
    )
    key.set_defaults(run=_hash_key)

    # Beside the gateway, not in it: only these subcommands need the load-test package.
    from loadtests.sim import cli as sim

    engine = commands.add_parser("sim-engine", help="run a simulated engine that looks like vLLM")
    sim.add_arguments(engine)
    engine.set_defaults(run=sim.run)

    from loadtests.replay import cli as replay

    replays = commands.add_parser("replay", help="compare policies on a trace, in virtual time")
    replay.add_arguments(replays)
    replays.set_defaults(run=replay.run)
    return parser


def settings_from(arguments: argparse.Namespace) -> Settings:
    """The config file with the command line's options over it.

    Raises:
        ConfigError: in either of them.
    """
    settings = load(arguments.config) if arguments.config is not None else Settings()
    over = {
        "server": {"host": arguments.host, "port": arguments.port},
        "policy": {"name": arguments.policy},
        "log": {"access": arguments.access_log, "level": arguments.log_level},
    }
    tree = msgspec.to_builtins(settings)
    for section, values in over.items():
        given = {name: value for name, value in values.items() if value is not None}
        if section == "policy" and given and given["name"] != settings.policy.name:
            tree["policy"] = given  # another policy does not understand the old one's parameters
        tree[section] |= given
    settings = convert(tree, Settings, "command line")
    backends = [BackendConfig(url=url) for url in arguments.backend or ()]
    return msgspec.structs.replace(settings, backends=[*settings.backends, *backends])


def _serve(arguments: argparse.Namespace) -> int:
    from gateway.process import serve
    from gateway.sockets import CannotListen

    def load() -> Settings:
        return settings_from(arguments)

    path = arguments.config
    try:
        if arguments.as_worker is not None:
            from gateway.workers.words import Orders
            from gateway.workers.worker import work

            return work(msgspec.json.decode(arguments.as_worker, type=Orders), load, path)
        if arguments.workers > 1:
            from gateway.workers.supervisor import supervise

            return supervise(arguments.workers, arguments.words, load, path)
        return serve(load, path)
    except CannotListen as error:
        print(f"prefixgate: {error}", file=sys.stderr)
        return 3


def _workers(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= count <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MAX_WORKERS}")
    return count


def _check(arguments: argparse.Namespace) -> int:
    from gateway.process import check

    check(load(arguments.config))
    print(f"{arguments.config}: ok")
    return 0


def _hash_key(arguments: argparse.Namespace) -> int:
    if arguments.stdin:
        key = sys.stdin.readline().strip()
        if len(key) < MIN_KEY:
            raise ConfigError(f"the key has {len(key)} characters, expected at least {MIN_KEY}")
        print(hash_key(key))
        return 0
    key = new_key()
    print(f"key:  {key}\nhash: {hash_key(key)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
