"""Whatever a body has in it: those members change that must, and not a byte of the others."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.disagg.bodies import TRANSFER_FIELDS
from gateway.disagg.connector import Connector, NoTransfer
from gateway.disagg.route import Route
from tests.disagg.legs import ALL, CARRIED, body_of, legs, pairing

KNOWN = (
    *("model", "messages", "prompt", "input", "text", "stream", "stream_options", "max_tokens"),
    *("max_completion_tokens", "max_output_tokens", "min_tokens", "min_completion_tokens"),
    *("stop", "stop_token_ids", "stop_sequences", "logprobs", "top_logprobs", "n", "tools"),
    *("return_token_ids", "return_prompt_text", "store", "request_id", "rid", "ignore_eos"),
    *("sampling_params", "vllm_xargs", "extra_args", "thinking", "prompt_token_ids"),
    *sorted(TRANSFER_FIELDS),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)
BODIES = st.lists(st.tuples(st.sampled_from(KNOWN) | st.text(max_size=4), VALUES), max_size=8)
STYLES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])
MAY_CHANGE = {
    *("stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens"),
    *("min_tokens", "min_completion_tokens", "stop", "stop_token_ids", "stop_sequences"),
    *("logprobs", "top_logprobs", "return_token_ids", "return_prompt_text", "store"),
    *("request_id", "rid", "ignore_eos", "prompt_token_ids"),
    *("sampling_params", "vllm_xargs", "extra_args"),
    *TRANSFER_FIELDS,
}
"""On one of the legs, of one of the protocols."""
ON_DECODE = {
    *("request_id", "rid", "prompt_token_ids", "sampling_params", "vllm_xargs", "extra_args"),
    *TRANSFER_FIELDS,
}


def told_apart(text: bytes) -> list[tuple[str, str]]:
    """The members at the top, each with its value's canonical text (NaN is unequal to itself)."""
    pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=lambda found: [*found])
    return [(name, json.dumps(value)) for name, value in pairs]


@given(
    members=BODIES,
    style=STYLES,
    ascii=st.booleans(),
    pick=st.sampled_from(CARRIED),
)
def test_only_what_must_change_does(
    members: list[tuple[str, Any]],
    style: tuple[str, str],
    ascii: bool,
    pick: tuple[Connector, Route],
) -> None:
    connector, route = pick
    comma, colon = style
    texts = [
        json.dumps(name, ensure_ascii=ascii)
        + colon
        + json.dumps(value, ensure_ascii=ascii, separators=style)
        for name, value in members
    ]
    body = ("{" + comma.join(texts) + "}").encode("utf-8", "surrogatepass")
    if connector.refuses(body, route) is not None:
        return
    prefill, decode = legs(connector, route, body)
    before = told_apart(body)
    for leg, may_change in (prefill, MAY_CHANGE), (decode, ON_DECODE):
        if connector.name == "trtllm":
            may_change = {*may_change, "prompt"}  # its ids take its place
        stays = [pair for pair in before if pair[0] not in may_change]
        after = told_apart(leg.body)
        assert [pair for pair in after if pair[0] not in may_change] == stays
        at = 0
        for (name, _), text in zip(members, texts, strict=True):
            if name not in may_change:
                at = leg.body.index(text.encode("utf-8", "surrogatepass"), at) + 1


@given(value=VALUES | st.text(), pick=st.sampled_from(CARRIED))
def test_any_json_is_carried_or_refused(value: Any, pick: tuple[Connector, Route]) -> None:
    """Or any text: nothing else is raised."""
    connector, route = pick
    text = value if isinstance(value, str) else json.dumps(value)
    for body in text.encode("utf-8", "surrogatepass"), json.dumps({"prompt": value}).encode():
        if connector.refuses(body, route) is None:
            legs(connector, route, body)


@given(answer=st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_answer_of_a_prefill_engine_is_used_or_told_to_be_useless(answer: bytes) -> None:
    for connector in ALL:
        with contextlib.suppress(NoTransfer):
            connector.decode(body_of(Route.CHAT), pairing(Route.CHAT), answer)
        connector.release(pairing(Route.CHAT), answer)
