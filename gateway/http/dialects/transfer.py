"""Members by which one engine is told where another one is: a gateway's own words to engines.

From a client they would have an engine connect to a host of the client's choice, or put the work on
a rank of its choice.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Transfers(msgspec.Struct, gc=False, kw_only=True):
    """Those members, of any body, and the ones that they can be hidden in."""

    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    disaggregated_params: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None
    routed_dp_rank: Any = None
    data_parallel_rank: Any = None
    disagg_prefill_dp_rank: Any = None
    vllm_xargs: Any = None
    sampling_params: Any = None
    parameters: Any = None


_NAMES = tuple(Transfers.__struct_fields__)
_DIRECT = _NAMES[:-3]
_IN_EXTRAS = frozenset(_DIRECT)
_NONE = (None,) * len(_NAMES)


def transfer_in(body: Transfers) -> str:
    """The name of the first of them that is set; "" when none is."""
    values = (
        body.kv_transfer_params,
        body.ec_transfer_params,
        body.disaggregated_params,
        body.bootstrap_host,
        body.bootstrap_port,
        body.bootstrap_room,
        body.routed_dp_rank,
        body.data_parallel_rank,
        body.disagg_prefill_dp_rank,
        body.vllm_xargs,
        body.sampling_params,
        body.parameters,
    )
    if values == _NONE:
        return ""
    for name, value in zip(_DIRECT, values, strict=False):
        if value is not None:
            return name
    extras, sampling, parameters = values[-3:]
    # vLLM keeps what it finds in the first two among its own arguments, where the transfer's are as
    # well; SGLang's /vertex_generate takes the third for members of the body.
    inner = sampling.get("extra_args") if isinstance(sampling, dict) else None
    for place, found in (
        ("vllm_xargs", extras),
        ("sampling_params.extra_args", inner),
        ("parameters", parameters),
    ):
        if isinstance(found, dict) and not _IN_EXTRAS.isdisjoint(found):
            return f"{place}.{min(_IN_EXTRAS.intersection(found))}"
    return ""
