"""What a gateway in a replay knows and learns."""

from __future__ import annotations

from enum import StrEnum

from gateway.config import Section
from loadtests.sim.profile import Count, Positive


class Output(StrEnum):
    LEARNT = "learnt"
    """By prefix, tenant and model, from answers that have ended."""
    TYPICAL = "typical"
    """One number for all requests."""
    TOLD = "told"
    """The true length: what no gateway knows."""


class Booking(StrEnum):
    DISPATCH = "dispatch"
    FIRST_TOKEN = "first_token"


class Classes(StrEnum):
    WORK = "work"
    """By the prefill that is left where most of the prompt is cached."""
    LENGTH = "length"
    """By the prefill of the whole prompt."""


class Knowledge(Section, frozen=True):
    """The defaults are the live gateway's; the others show what each part is worth."""

    rates: bool = True
    """How fast each engine is, from when tokens come."""
    capacity: bool = True
    """How large each engine's cache is, from the cached tokens that it reports."""
    output: Output = Output.LEARNT
    """What the expected length of an answer is."""
    index: bool = True
    """Whether it is remembered which prompts went where."""
    index_capacity: Positive = 1.0
    """What the cache of each engine is first taken to hold, in times what it does."""
    block: Count = 1
    """How many of the trace's blocks make one of the index's."""
    booking: Booking = Booking.DISPATCH
    """From when on a prompt counts as cached at its engine."""
    classes: Classes = Classes.WORK


LIVE = Knowledge()
