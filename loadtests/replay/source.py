"""Where a trace comes from: a file, recognised by its content, or a generator, by its name."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gateway.config import ConfigError
from loadtests.replay import access_log, azure, mooncake
from loadtests.replay.arrivals import grain, spread
from loadtests.replay.generators import registry as generators
from loadtests.replay.trace import Trace, TraceRequest

Source = Callable[[int], Trace]
"""A trace for a seed. Of a file, seeds only move its arrivals a little."""

_GZIP = b"\x1f\x8b"


def find(text: str) -> Source:
    """A source by the path of a file, packed by gzip or not, or as `gen:NAME?param=value&...`.

    Raises:
        ConfigError: there is no such file or generator, or it cannot be read.
    """
    if text.startswith(generators.PREFIX):
        return generators.find(text)
    return partial(spread, read(Path(text)))


def read(path: Path) -> Trace:
    """A trace as its file has it.

    Raises:
        ConfigError: the file cannot be read, or its format is none of the known ones.
    """
    try:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: not a whole gzip file: {error}") from None
    name, lines = path.name, data.splitlines()
    first = next((line for line in lines if line.strip()), b"")
    if first.decode("utf-8", "replace").lstrip("\ufeff").split(",") == azure.HEADER:
        return _azure(name, lines, digest)
    if b'"hash_ids"' in first:
        return _mooncake(name, lines, digest)
    if b'"prompt_bytes"' in first:
        return _access_log(name, lines, digest)
    raise ConfigError(
        f"{path}: not a known trace; expected JSON lines of Mooncake (with hash_ids) or of the"
        f" gateway's access log (with prompt_bytes), or a CSV with {','.join(azure.HEADER)}"
    )


def _mooncake(name: str, lines: Sequence[bytes], digest: str) -> Trace:
    requests = _in_order(mooncake.read(name, lines))
    window = grain(requests)
    notes: tuple[str, ...] = ()
    if window:
        notes = (f"arrivals come in batches of {window:g} s: spread over them evenly, by seed",)
    return Trace(name, requests, digest, mooncake.BLOCK_TOKENS, window, notes=notes)


def _azure(name: str, lines: Sequence[bytes], digest: str) -> Trace:
    requests = _in_order(azure.read(name, lines))
    notes = ("has no prefixes: nothing is ever cached",)
    return Trace(name, requests, digest, mooncake.BLOCK_TOKENS, notes=notes)


def _access_log(name: str, lines: Sequence[bytes], digest: str) -> Trace:
    log = access_log.read(name, lines)
    notes = [f"engines counted {log.token_ratio:.3f} tokens per nominal token"]
    if log.left_out:
        notes.append(f"{log.left_out} requests that no engine served are left out")
    return Trace(
        name,
        _in_order(log.requests),
        digest,
        None,
        token_ratio=log.token_ratio,
        notes=tuple(notes),
    )


def _in_order(requests: list[TraceRequest]) -> list[TraceRequest]:
    return sorted(requests, key=lambda request: request.arrival)
