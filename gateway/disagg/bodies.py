"""What of a request's body is changed for the legs of its handover, route by route.

Both legs have the client's body. Members by which engines are told about each other are put in, and
taken out where a client gave them. The prefill leg is besides cut down to one token, which nobody
reads: the caps that its route knows are lowered, and what would then be invalid, or is work for
that one token, goes. What shapes the prompt stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.disagg.members import Members
from gateway.disagg.route import Route

TRANSFER_FIELDS = frozenset(
    {
        *("kv_transfer_params", "ec_transfer_params", "disaggregated_params"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
        *("routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"),
    }
)
"""The members that tell engines about each other."""
_NONE: frozenset[str] = frozenset()
_STREAM = frozenset({"stream_options"})
"""Refused without a stream."""
_FIRST_TOKEN = _STREAM | {
    *("min_tokens", "min_completion_tokens"),  # refused above the cap
    *("logprobs", "top_logprobs", "return_token_ids", "return_prompt_text"),
    *("stop", "stop_token_ids", "stop_sequences"),
}
_SAMPLING = "sampling_params"
_EXTRAS = "vllm_xargs"
_SAMPLING_EXTRAS = "extra_args"
_CAP = {
    Route.CHAT: "max_tokens",
    Route.COMPLETIONS: "max_tokens",
    Route.RESPONSES: "max_output_tokens",
    Route.MESSAGES: "max_tokens",
    Route.TOKENS: "max_tokens",
}
"""By route, the member that limits the length of an answer; of the last one it is in the sampling
parameters."""
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Any of them that a client gave is lowered: which one counts is the engine's to say."""
CAPPED = frozenset(_CAP)
"""The routes that `one_token` knows."""


def carried(body: bytes, values: Mapping[str, bytes], without: Collection[str] = _NONE) -> bytes:
    """A decode leg's body.

    Args:
        body: the client's.
        values: JSON of the members that are put in.
        without: names of further members that go.
    """
    return _edited(Members(body), values, without)


def unstreamed(body: bytes, values: Mapping[str, bytes], without: Collection[str] = _NONE) -> bytes:
    """The body of a prefill leg at an engine that stops after the first token by itself. Arguments
    as for `carried`."""
    members = Members(body)
    return _edited(members, {**_no_stream(members), **values}, {*_STREAM, *without})


def one_token(
    body: bytes, route: Route, values: Mapping[str, bytes], without: Collection[str] = _NONE
) -> bytes:
    """The body of a prefill leg at an engine that does as it is told. Arguments as for `carried`.

    Args:
        route: one of `CAPPED`.
    """
    members = Members(body)
    changes = _no_stream(members)
    if route is Route.TOKENS:
        sampling = _object(members, _SAMPLING) or Members(b"{}")
        inner = {**_cleaned_extras(sampling), **_capped(sampling, route)}
        changes[_SAMPLING] = sampling.edited(inner, _FIRST_TOKEN)
    else:
        changes |= _capped(members, route)
    if route is Route.RESPONSES:
        changes["store"] = b"false"
    return _edited(members, {**changes, **values}, {*_FIRST_TOKEN, *without})


def _edited(members: Members, values: Mapping[str, bytes], without: Collection[str]) -> bytes:
    values = {**_cleaned(members), **values}
    return members.edited(values, {*without, *TRANSFER_FIELDS}.difference(values))


def _capped(members: Members, route: Route) -> dict[str, bytes]:
    given = (name for name in _CAPS if name in members)
    return dict.fromkeys((_CAP[route], *given), b"1")


def _no_stream(members: Members) -> dict[str, bytes]:
    return {"stream": b"false"} if "stream" in members else {}


def _cleaned(members: Members) -> dict[str, bytes]:
    """The members that what tells engines about each other is hidden in, without it. vLLM keeps
    what it finds in these among its own arguments, where the transfer's are as well."""
    values = _cleaned_extras(members)
    sampling = _object(members, _SAMPLING)
    if sampling is not None and (extras := _cleaned_extras(sampling)):
        values[_SAMPLING] = sampling.edited(extras)
    return values


def _cleaned_extras(members: Members) -> dict[str, bytes]:
    values = {}
    for name in (_EXTRAS, _SAMPLING_EXTRAS):
        inner = _object(members, name)
        if inner is not None and any(field in inner for field in TRANSFER_FIELDS):
            values[name] = inner.edited({}, TRANSFER_FIELDS)
    return values


def _object(members: Members, name: str) -> Members | None:
    value = members.get(name)
    return Members(value) if value is not None and value.startswith(b"{") else None
