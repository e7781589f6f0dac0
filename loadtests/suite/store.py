"""Results on disk, so that what was run once is not run again."""

from __future__ import annotations

from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path

import msgspec

from gateway.config import ConfigError
from loadtests.suite.case import Case, Done


class Store:
    """A file of JSON lines, one for each case; each is on disk before the next one is awaited.

    Args:
        path: need not be there yet.

    Raises:
        ConfigError: the file is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: dict[str, Done] = {}
        decode = msgspec.json.Decoder(Done, strict=False).decode
        data = path.read_bytes() if path.exists() else b""
        lines = data.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                done = decode(line)
            except msgspec.DecodeError as error:
                if number == len(lines) and not data.endswith(b"\n"):
                    self._drop_last(line)  # it was cut off when it was written
                    break
                raise ConfigError(f"{path}, line {number}: {error}") from None
            self._done[done.key] = done

    def _drop_last(self, line: bytes) -> None:
        with self._path.open("r+b") as file:
            file.truncate(file.seek(0, SEEK_END) - len(line))

    def get(self, case: Case) -> Done | None:
        return self._done.get(case.key)

    def add(self, done: Done) -> None:
        self._done[done.key] = done
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(done) + b"\n")

    def __iter__(self) -> Iterator[Done]:
        return iter(self._done.values())
