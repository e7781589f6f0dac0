"""What a protocol of handing KV caches over has to say. Pure: bytes in, bytes out.

A handover is two requests. The prefill leg has one engine compute the prompt; the decode leg has
another one fetch what was computed, and answer. What each of them is sent, and in which order, is
all that protocols differ in.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import msgspec

from gateway.config import ConnectorName
from gateway.disagg.refusal import Refusal
from gateway.disagg.route import Route

Headers = tuple[tuple[bytes, bytes], ...]


class NoTransfer(Exception):
    """The prefill leg's answer gives the decode leg nothing to fetch. A decode engine can still
    serve the request as the client sent it. Its text never has anything of the answer in it.

    Attributes:
        held: the prefill engine may hold the prompt all the same.
    """

    def __init__(self, why: str, *, held: bool = False) -> None:
        super().__init__(why)
        self.held = held


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two engines: where the other one finds it, and what it is like. From the settings
    and from the engine itself, never from clients.

    Attributes:
        host: under which other engines reach it; an IPv6 address without its brackets.
        bootstrap_port: of the server where the engines of a pair meet (SGLang, Mooncake).
        engine_id: the connector's name for it, of all its ranks; "" when it is not known.
        engine_ids: the same by data-parallel rank, where each rank has told its own.
        side_channel_host: where its NIXL handshakes are; "" for what the engine itself says, or
            else `host`.
        side_channel_port: of rank 0; the other ranks' follow. None for what the engine itself
            says, or else NIXL's usual one.
        tp_size, pp_size, dp_size: tensor, pipeline and data-parallel ranks.
        version: of the engine, "" when it does not say.
        page_size: tokens of one cache block, None when it does not say.
        cache_dtype: of its KV cache, "" when it does not say.
    """

    host: str
    bootstrap_port: int | None = None
    engine_id: str = ""
    engine_ids: tuple[str, ...] = ()
    side_channel_host: str = ""
    side_channel_port: int | None = None
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    version: str = ""
    page_size: int | None = None
    cache_dtype: str = ""


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """What ties the two legs of one handover together. Made anew for each attempt, see
    `gateway.disagg.ids.PairingIds`.

    Attributes:
        id: the request id on both legs; no other process makes the same one.
        room: 0 to 2**63 - 1; where the legs meet. It also says which data-parallel rank prefills.
        transfer_id: the same for connectors that name transfers.
        route: whose schema the bodies have. Both legs go to the same path.
        prefill, decode: the engines.
    """

    id: str
    room: int
    transfer_id: str
    route: Route
    prefill: Side
    decode: Side

    @property
    def prefill_rank(self) -> int:
        """The data-parallel rank of the prefill engine that computes the prompt."""
        return self.room % self.prefill.dp_size

    def headers(self) -> Headers:
        """Those that both legs have."""
        return ((b"x-request-id", self.id.encode()),)


class Leg(msgspec.Struct, frozen=True):
    """One request of the two, or the answer that makes it needless.

    Attributes:
        body: to be sent; for a final leg the JSON answer for the client.
        headers: to be sent besides the client's, and in place of those of the same names.
        final: nothing is to be sent: the prefill leg's answer was all of it.
    """

    body: bytes
    headers: Headers = ()
    final: bool = False


class Release(msgspec.Struct, frozen=True):
    """A request by which an engine that holds a prompt for a decode leg that never comes is told to
    let go of it. Its answer, an error by design for some, is of no matter to breakers and clients.

    Attributes:
        to_decode: it goes to the decode engine, which tells the other one; else to the prefill
            engine.
        path: None for the path that the legs go to.
        body: JSON, for a POST.
        headers: as in `Leg`.
    """

    to_decode: bool
    path: str | None
    body: bytes
    headers: Headers = ()


class Connector(Protocol):
    """One protocol. Stateless."""

    name: ClassVar[ConnectorName]
    concurrent: ClassVar[bool]
    """Both legs are sent at once: the prefill leg's answer has nothing for the decode leg."""
    overlaps: ClassVar[bool]
    """What is computed of a prompt is sent while the rest is not done."""
    holds: ClassVar[bool]
    """A prefill engine keeps a prompt's cache reserved until the decode engine has fetched it, or
    a time is over."""
    sees_to_it: ClassVar[bool]
    """A decode engine that has begun to answer and gives the request up before it has fetched the
    cache has the prefill engine let go of it."""
    alone: ClassVar[bool]
    """Its engines serve requests that are not handed over as well."""
    waits: ClassVar[bool]
    """The prefill leg is answered once the decode engine has fetched the cache, and no sooner: when
    nothing comes, either of them may hang."""
    fetch_within: ClassVar[float | None]
    """Seconds after the prefill leg's answer within which the decode leg must be at its engine, by
    the engines' defaults; None when there is no such limit."""

    def refuses(self, body: bytes, route: Route) -> Refusal | None:
        """Why such a request is to be served by one engine; None when it can be handed over."""

    def mismatch(self, prefill: Side, decode: Side) -> str | None:
        """Why two engines are not to be paired, for people; None when nothing speaks against it."""

    def prefill(self, body: bytes, pairing: Pairing) -> Leg:
        """Args:
        body: the client's, which `refuses` let pass.
        """

    def decode(self, body: bytes, pairing: Pairing, answer: bytes | None) -> Leg:
        """Args:
            body: the client's, as for the prefill leg.
            answer: the whole body of the prefill leg's answer, of a 2xx; None when both legs are
                sent at once.

        Raises:
            NoTransfer: the answer has nothing that a decode engine could use.
        """

    def release(self, pairing: Pairing, answer: bytes | None) -> Release | None:
        """What to send once the prefill leg has been accepted and the decode leg will not come.

        Args:
            answer: as for `decode`; None when there is none.

        Returns:
            None: where `holds`, only time frees what the prefill engine holds.
        """
