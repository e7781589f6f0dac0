"""All backends, and the rules by which they are let in, put out and let in again.

No I/O here: probes and requests report what happened to them, listeners hear what follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from gateway.config import BackendConfig, Backpressure, BreakerConfig, ConfigError, Health
from gateway.fleet.access import Accesses
from gateway.fleet.address import Address
from gateway.fleet.aliases import Aliases
from gateway.fleet.backend import Backend, BackendState, Source
from gateway.fleet.breaker import BreakerState, Trials
from gateway.fleet.facts import EngineFacts
from gateway.types import Clock

logger = logging.getLogger("prefixgate.fleet")

Listener = Callable[[Backend], None]

SHORTEST_BUSY = 0.25
"""Seconds that a backend counts as busy at least, whatever it takes meanwhile: at the edge of its
capacity it takes and refuses in turn, and each change concerns every request that waits."""

LAST_OPEN = 1.0
"""Seconds that a breaker stays open at most while no other backend takes requests for one of its
models."""
MAX_CAUSES = 5
"""Causes that are told to whoever asks for a service that is not there."""


class UnknownBackend(LookupError):
    """There is no backend with this id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"There is no backend {id[:64]!r}.")


class Added(NamedTuple):
    """`new` is false when a backend of that address was there already."""

    backend: Backend
    new: bool


class Fleet:
    """Backends by id. Iterates over those that are not removed, in the order of their adding.

    Attributes:
        aliases: other names for their models; may be assigned anew.
        backpressure: for how long busy backends are avoided.
    """

    def __init__(
        self,
        health: Health,
        clock: Clock,
        breaker: BreakerConfig | None = None,
        backpressure: Backpressure | None = None,
        accesses: Accesses | None = None,
    ) -> None:
        self._health = health
        self._breaker = breaker or BreakerConfig()
        self.backpressure = backpressure or Backpressure()
        self._accesses = accesses or Accesses()
        self._clock = clock
        self.aliases = Aliases({})
        self._backends: dict[str, Backend] = {}
        self._changed: list[Listener] = []
        self._restarted: list[Listener] = []
        self._suspected: list[Listener] = []

    def __iter__(self) -> Iterator[Backend]:
        return iter(tuple(self._backends.values()))

    def get(self, id: str) -> Backend:
        """Raises:
        UnknownBackend: it was never there, or is removed.
        """
        try:
            return self._backends[id]
        except KeyError:
            raise UnknownBackend(id) from None

    def find(self, id: str) -> Backend | None:
        """None where `get` would raise."""
        return self._backends.get(id)

    def reconfigure(
        self, health: Health, breaker: BreakerConfig, backpressure: Backpressure
    ) -> None:
        """Go by other settings from now on. States stay as they are."""
        self._health = health
        self._breaker = breaker
        self.backpressure = backpressure
        for backend in self:
            backend.breaker.settings = breaker

    # listeners

    def on_change(self, listener: Listener) -> None:
        """Hear of every change of a backend's state, models, role or capacity."""
        self._changed.append(listener)

    def on_restart(self, listener: Listener) -> None:
        """Hear of engines that are back as another process, with an empty cache.

        Called before they are let in again.
        """
        self._restarted.append(listener)

    def on_suspicion(self, listener: Listener) -> None:
        """Hear of backends that should be probed now: they are new, or a request failed there."""
        self._suspected.append(listener)

    # what the operator does

    def add(
        self, config: BackendConfig, source: Source = Source.CONFIG, *, draining: bool = False
    ) -> Added:
        """Let a backend in. One that is there at the same address goes on with the new config.

        Args:
            draining: nothing is to be sent to it if it is new.

        Raises:
            ConfigError: no usable address or model name, no model name where none is asked for,
                or a key or certificate that cannot be read.
        """
        backend = Backend(config, source, self._clock, self._breaker)
        if not self._health.probes:
            self._trust(backend)
        guarded = source is Source.ADMIN
        access = self._accesses.of(backend.address, config, guarded=guarded)
        known = self._backends.get(backend.id)
        if known is not None:
            known.config, known.source = config, source
            backend = known
        else:
            self._backends[backend.id] = backend
            backend.draining = draining
        backend.access = access
        self._tell(backend)
        self._suspect(backend)
        return Added(backend, new=known is None)

    def renew_accesses(self) -> None:
        """Read the keys of backends again, where they are kept.

        Raises:
            ConfigError: one cannot be read. Then nothing has changed.
        """
        renewed = [
            self._accesses.of(
                backend.address, backend.config, guarded=backend.source is Source.ADMIN
            )
            for backend in self
        ]
        for backend, access in zip(self, renewed, strict=True):
            if access != backend.access:
                backend.access = access
                self._tell(backend)

    def check(self, config: BackendConfig) -> None:
        """Whether whoever may only use the admin API may have such a backend added.

        Raises:
            ConfigError: not this one.
        """
        self._accesses.check(Address.parse(config.url), config)

    def _trust(self, backend: Backend) -> None:
        """Let a backend in that nobody asks how it is."""
        if backend.config.models is None:
            raise ConfigError(
                f"backend {backend.address.url}: models: must be named while health.probes is"
                " false: nobody asks the backend",
                field="models",
            )
        backend.condition = BackendState.HEALTHY
        backend.health_cause = ""

    def drain(self, id: str, on: bool = True) -> Backend:
        """Send nothing new to a backend; with `on` false, send to it again.

        Raises:
            UnknownBackend: there is none of that id.
        """
        backend = self.get(id)
        if backend.draining is not on:
            before = backend.state
            backend.draining = on
            self._note(backend, before)
            self._tell(backend)
        return backend

    def unlist(self, backend: Backend, on: bool = True) -> None:
        """Send nothing new to a backend that no source names any more; with `on` false, one does
        again."""
        before = backend.state
        backend.unlisted = on
        self._note(backend, before)
        self._tell(backend)

    def remove(self, id: str, expect: Backend | None = None) -> Backend:
        """Args:
            expect: remove this one, not another that was added at its address since.

        Raises:
            UnknownBackend: there is none of that id, or not the expected one.
        """
        backend = self.get(id)
        if expect is not None and backend is not expect:
            raise UnknownBackend(id)
        del self._backends[id]
        self._become(backend, BackendState.REMOVED, "removed")
        self._tell(backend)
        return backend

    # what can be served

    def models(self) -> set[str]:
        """Models that can be served now, by every name that they can be asked for by."""
        served = {
            model
            for backend in self._backends.values()
            if backend.state is BackendState.HEALTHY
            for model in backend.models
        }
        return self.aliases.served_by(served)

    def knows(self, model: str) -> bool:
        """Whether any backend serves a model, or would if it could."""
        names = self.aliases.names(model) or (model,)
        return any(name in backend.models for backend in self._backends.values() for name in names)

    def knows_models(self) -> bool:
        """Whether a model that no backend lists can be called unknown.

        It cannot while nothing is known at all, or a backend is still to be asked for the first
        time. One that cannot be reached stops counting when it is ejected.
        """
        waiting = any(
            backend.state is BackendState.STARTING and not backend.models
            for backend in self._backends.values()
        )
        return not waiting and any(backend.models for backend in self._backends.values())

    def why_unready(self) -> list[str]:
        """Why backends do not serve, each cause once, without their addresses."""
        causes = {
            backend.cause
            for backend in self._backends.values()
            if backend.state is not BackendState.HEALTHY and backend.cause
        }
        return sorted(causes)[:MAX_CAUSES]

    # what is reported

    def report_failure(
        self,
        id: str,
        cause: str,
        *,
        gone: bool = False,
        sent_at: float | None = None,
        trial: Trials | None = None,
    ) -> None:
        """A request failed at a backend, by the backend's fault.

        Args:
            gone: the backend could not even be connected to.
            sent_at: when the request was sent there, on the fleet's clock; None for now.
            trial: the permit that it held.
        """
        backend = self._backends.get(id)
        if backend is None:
            return
        backend.doubted |= gone
        before = backend.state
        if backend.breaker.failed(cause, sent_at=sent_at, trial=trial):
            self._breaker_changed(backend, before)
        self._suspect(backend)

    def report_accepted(self, id: str, *, sent_at: float, trial: Trials | None = None) -> None:
        """A backend has begun to serve a request: the first content of a stream, or the head of
        another answer, has come."""
        backend = self._backends.get(id)
        if backend is None:
            return
        if trial is not None:
            before = backend.state
            if backend.breaker.proved(sent_at=sent_at, trial=trial):
                self._breaker_changed(backend, before)
            elif backend.busy is trial and self._clock() - backend.busy_since >= SHORTEST_BUSY:
                self._not_busy(backend)
        if backend.doubted and not self._health.probes:
            backend.doubted = False
            for listener in self._restarted:
                listener(backend)

    def report_success(self, id: str) -> None:
        """A request was answered by a backend, from beginning to end."""
        backend = self._backends.get(id)
        if backend is not None:
            backend.breaker.served()

    def report_busy(self, id: str, retry_after: float | None) -> None:
        """A backend refused a request because it has too much to do.

        Args:
            retry_after: for how long it says to leave it alone; None when it does not say.
        """
        backend = self._backends.get(id)
        if backend is None:
            return
        settings, now = self.backpressure, self._clock()
        seconds = settings.avoid if retry_after is None else retry_after
        until = now + min(seconds, settings.max_avoid)
        if backend.busy is None and until > now:
            backend.busy = Trials(settings.trials)
            backend.busy_since = now
            self._tell(backend)
        backend.busy_until = max(backend.busy_until, until)

    def tick(self) -> None:
        """Do what is due; to be called a few times a second."""
        now = self._clock()
        for backend in self:
            if backend.breaker.state is not BreakerState.CLOSED:
                before = backend.state
                if backend.breaker.tick():
                    self._breaker_changed(backend, before)
            if backend.busy is not None and now >= backend.busy_until:
                self._not_busy(backend)
        self._try_the_last()

    def _try_the_last(self) -> None:
        """Where requests have put out all that serve a model, or all but busy ones, have the one
        that has been out longest tried before its time: that hurts nobody any more."""
        now = self._clock()
        out = [
            backend
            for backend in self._backends.values()
            if backend.breaker.state is BreakerState.OPEN
            and backend.condition is BackendState.HEALTHY
            and not (backend.draining or backend.unlisted)
        ]
        for backend in sorted(out, key=lambda backend: backend.breaker.since):
            waited = now - backend.breaker.since >= LAST_OPEN
            if waited and not self._taking().issuperset(backend.models):
                before = backend.state
                backend.breaker.try_now()
                self._breaker_changed(backend, before)

    def report_missing_model(self, id: str) -> None:
        """A backend said that it does not have a model which it lists: it is asked again."""
        backend = self._backends.get(id)
        if backend is not None:
            self._suspect(backend)

    def _taking(self) -> set[str]:
        """Models of backends that serve and are not busy."""
        return {
            model
            for backend in self._backends.values()
            if backend.state is BackendState.HEALTHY and backend.busy is None
            for model in backend.models
        }

    def probe_failed(self, backend: Backend, cause: str, *, gone: bool = False) -> None:
        """Args:
        gone: nothing listens at its address.
        """
        if self._backends.get(backend.id) is not backend:
            return
        if not backend.failed_probes:
            backend.failing_since = self._clock()
        backend.failed_probes += 1
        # Requests and probe agree that nothing listens there: no need to wait for more of either.
        dead = gone and backend.doubted and backend.breaker.failures > 0
        backend.doubted |= gone
        backend.health_cause = cause
        if backend.failed_probes == 1:
            logger.warning(
                "backend %s (%s): a probe failed: %s", backend.id, backend.address.url, cause
            )
        if dead or backend.failed_probes >= self._health.unhealthy_after:
            self._eject(backend, cause)

    def probe_succeeded(self, backend: Backend, facts: EngineFacts) -> None:
        """A backend answered that it serves, and this about itself."""
        if self._backends.get(backend.id) is not backend:
            return
        before = (backend.state, backend.models, backend.capacity_tokens)
        known = backend.facts
        if known is not None:
            if _is_another(known, facts, backend.doubted):
                self._void(backend)
            else:
                facts = _completed(facts, known)
        backend.facts = facts
        was_away = backend.doubted or backend.failed_probes > 0
        backend.doubted = False
        if backend.models:
            self._let_in(backend, was_away=was_away)
        else:
            unread = facts.models is None
            self.probe_failed(
                backend,
                "GET /v1/models cannot be read: name its models in the settings"
                if unread
                else "GET /v1/models lists none",
            )
        if before != (backend.state, backend.models, backend.capacity_tokens):
            self._tell(backend)

    def probe_doubted(self, backend: Backend) -> None:
        """Nothing listened at its address just now: have it probed, and its process looked at."""
        if self._backends.get(backend.id) is backend and not backend.doubted:
            backend.doubted = True
            self._suspect(backend)

    def probe_read(self, backend: Backend, started: float | None, work: float | None) -> None:
        """A page of a backend told of its process.

        Args:
            started: when it started, unix seconds.
            work: a count that never falls within one process.
        """
        if self._backends.get(backend.id) is not backend:
            return
        facts, before = backend.facts, backend.work
        backend.work = before if work is None else work
        known = None if facts is None else facts.started
        if facts is not None and started is not None:
            backend.facts = replace(facts, started=max(started, known or 0.0))
        if known is not None and started is not None:
            another = started > known
        else:
            another = before is not None and work is not None and work < before
        if another:
            self._void(backend)

    # how it is done

    def _void(self, backend: Backend) -> None:
        """Another process listens at a backend's address, with an empty cache."""
        backend.work = None
        for listener in self._restarted:
            listener(backend)

    def _let_in(self, backend: Backend, *, was_away: bool) -> None:
        """Args:
        was_away: probes, or the connections of requests, have failed since the last good probe. One
            that never failed a probe fails requests for reasons that probes do not see.
        """
        backend.failed_probes = 0
        before = backend.state
        if was_away:
            backend.breaker.try_now()
        backend.condition = BackendState.HEALTHY
        backend.health_cause = ""
        self._note(backend, before)

    def _breaker_changed(self, backend: Backend, before: BackendState) -> None:
        self._note(backend, before)
        self._tell(backend)

    def _not_busy(self, backend: Backend) -> None:
        backend.busy = None
        backend.busy_until = 0.0
        self._tell(backend)

    def _eject(self, backend: Backend, cause: str) -> None:
        if backend.condition is not BackendState.EJECTED:
            self._become(backend, BackendState.EJECTED, cause)
            self._tell(backend)

    def _become(self, backend: Backend, condition: BackendState, cause: str) -> None:
        before = backend.state
        backend.condition = condition
        backend.health_cause = cause
        self._note(backend, before)

    def _note(self, backend: Backend, before: BackendState) -> None:
        """Write down a change of state, if there was one."""
        if backend.state is before:
            return
        backend.since = self._clock()
        bad = backend.state is BackendState.EJECTED
        on_trial = backend.state is BackendState.HEALTHY and backend.breaker.trials is not None
        logger.log(
            logging.WARNING if bad else logging.INFO,
            "backend %s (%s) is %s%s%s",
            backend.id,
            backend.address.url,
            backend.state,
            " on trial" if on_trial else "",
            f": {backend.cause}" if backend.cause else "",
        )

    def _tell(self, backend: Backend) -> None:
        for listener in self._changed:
            listener(backend)

    def _suspect(self, backend: Backend) -> None:
        for listener in self._suspected:
            listener(backend)


def _is_another(known: EngineFacts, found: EngineFacts, doubted: bool) -> bool:
    """Whether two findings are of two processes. Start times decide where engines tell them.

    One that is earlier than what is known proves that several processes share an address, and
    that none has taken another's place.
    """
    if known.started is not None and found.started is not None:
        return found.started > known.started or (doubted and found.started != known.started)
    return doubted or known.kind is not found.kind


def _completed(found: EngineFacts, known: EngineFacts) -> EngineFacts:
    """What a page that failed this time said before is still true of the same process."""
    return replace(
        found,
        models=known.models if found.models is None else found.models,
        max_model_len=known.max_model_len if found.models is None else found.max_model_len,
        capacity_tokens=found.capacity_tokens or known.capacity_tokens,
        block_size=found.block_size or known.block_size,
        started=max(found.started or 0.0, known.started or 0.0) or None,
        adapters=known.adapters if found.models is None else found.adapters,
        flipped=found.flipped or known.flipped,
        cache_dtype=found.cache_dtype or known.cache_dtype,
        version=found.version or known.version,
        chunk_tokens=found.chunk_tokens or known.chunk_tokens,
    )
