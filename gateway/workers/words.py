"""What supervisor and workers ask each other for."""

from __future__ import annotations

from enum import StrEnum

import msgspec

NONE = b""
"""The body where there is nothing to say."""


class Ask(StrEnum):
    """Questions, by who asks whom."""

    # a worker, the supervisor
    SERVING = "serving"
    """It says that it serves."""
    PAGE = "page"
    """The metrics page of all workers."""
    OTHERS = "others"
    """What every other worker answers to a question, a `Question`; a list of answers."""

    # the supervisor, a worker
    READING = "reading"
    """Its metrics."""
    STOP = "stop"
    """That a signal to stop has come: its number."""
    HANG_UP = "hang up"
    """That SIGHUP has come."""
    STAND_IN = "stand in"
    """To take the connections of another worker that does not run, by its number."""
    STAND_DOWN = "stand down"
    """To leave them to it again."""

    # a worker, the others
    READ = "read"
    """What the admin API answers there to a read, an `AdminRead`; as JSON."""
    RELOAD = "reload"
    """To load the config file anew."""


class Question(msgspec.Struct, array_like=True, frozen=True):
    ask: Ask
    body: bytes = NONE


class AdminRead(msgspec.Struct, array_like=True, frozen=True):
    """Attributes:
    operation: its id in the admin API's document.
    path: its parameters in the path.
    """

    operation: str
    path: dict[str, str]


class Orders(msgspec.Struct, frozen=True):
    """What a worker is started with. Sockets are descriptors that it inherits.

    Attributes:
        number: of this worker, from 1.
        instance: names all workers of one supervisor.
        channel: to the supervisor.
        sockets: to listen on, those of each worker, in the order of their numbers.
        admin: for the admin API, where it has an address of its own.
    """

    number: int
    instance: str
    channel: int
    sockets: list[list[int]]
    admin: list[int]
