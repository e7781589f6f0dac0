"""A client that plays each protocol by the book, in as few words as possible.

Fakes and simulated engines are held against it. It shares no code with the gateway.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

Json = dict[str, Any]
Edit = Callable[[Json], object]

CONCURRENT = ("nixl_push", "mooncake", "sglang")
PROTOCOLS = ("nixl_pull", *CONCURRENT, "trtllm", "shared_store")
DROPPED = ("stream_options", "min_tokens", "min_completion_tokens")


@dataclass(slots=True, frozen=True)
class Prefill:
    """What a client must know of a prefill engine before it sends anything.

    Attributes:
        engine_id: of NIXL push; Mooncake's is asked for.
        port: of the side channel, or of the bootstrap server.
    """

    url: str
    engine_id: str = ""
    host: str = "127.0.0.1"
    port: int = 5600


def same(body: Json) -> None:
    """No change."""


@dataclass(slots=True)
class Handover:
    """One request over two engines.

    Attributes:
        edit_prefill: spoils the prefill leg's body.
        edit_decode: spoils the decode leg's.
        id: the request id on both legs.
        room: also the number of the request for TensorRT-LLM.
    """

    protocol: str
    prefill: Prefill
    decode: str
    path: str
    body: Json
    edit_prefill: Edit = same
    edit_decode: Edit = same
    id: str = ""
    room: int = 0
    timeout: float = 20.0

    def __post_init__(self) -> None:
        self.id = self.id or uuid.uuid4().hex
        self.room = self.room or random.getrandbits(62)

    def run(self) -> tuple[httpx.Response, httpx.Response]:
        """Returns: the answers of the prefill and of the decode leg."""
        if self.protocol not in CONCURRENT:
            first = self.send_prefill()
            return first, self.send_decode(first)
        with ThreadPoolExecutor(2) as pool:
            legs = [pool.submit(self.send_prefill), pool.submit(self.send_decode)]
            return legs[0].result(), legs[1].result()

    def send_prefill(self) -> httpx.Response:
        body = copy.deepcopy(self.body)
        if self.protocol == "trtllm":
            body |= {"stream": False}
            body.pop("stream_options", None)
            number = {"disagg_request_id": self.room}
            body["disaggregated_params"] = {"request_type": "context_only", **number}
        elif self.protocol == "sglang":
            body |= self._room()
        else:
            self._cap(body)
        self.edit_prefill(body)
        return self._post(self.prefill.url, body)

    def send_decode(self, first: httpx.Response | None = None) -> httpx.Response:
        body = copy.deepcopy(self.body)
        given = first.json() if first is not None and first.is_success else {}
        match self.protocol:
            case "nixl_pull":
                body["kv_transfer_params"] = given["kv_transfer_params"]
            case "nixl_push":
                body["kv_transfer_params"] = {**self._remote(), "remote_request_id": self.id}
            case "mooncake":
                body["kv_transfer_params"] = self._registered()
            case "sglang":
                body |= self._room()
            case "trtllm":
                params = given["choices"][0]["disaggregated_params"]
                body["disaggregated_params"] = {**params, "request_type": "generation_only"}
                chat = self.path.endswith("/chat/completions")
                body["prompt_token_ids" if chat else "prompt"] = given["prompt_token_ids"]
        self.edit_decode(body)
        return self._post(self.decode, body)

    def _cap(self, body: Json) -> None:
        names = ["max_output_tokens" if self.path.endswith("/responses") else "max_tokens"]
        if "max_completion_tokens" in body:
            names.append("max_completion_tokens")
        body |= dict.fromkeys(names, 1) | {"stream": False}
        for name in DROPPED:
            body.pop(name, None)
        flags = {"do_remote_decode": True, "do_remote_prefill": False}
        if self.protocol == "mooncake":
            body["kv_transfer_params"] = {**flags, "transfer_id": f"xfer-{self.id}"}
            body |= {"ignore_eos": True, "stop": [], "stop_token_ids": []}
        elif self.protocol != "shared_store":
            body["kv_transfer_params"] = flags

    def _room(self) -> Json:
        address = {"bootstrap_host": self.prefill.host, "bootstrap_port": self.prefill.port}
        return {**address, "bootstrap_room": self.room}

    def _remote(self) -> Json:
        return {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_engine_id": self.prefill.engine_id,
            "remote_host": self.prefill.host,
            "remote_port": self.prefill.port,
            "tp_size": 1,
            "pp_size": 1,
        }

    def _registered(self) -> Json:
        registry = f"http://{self.prefill.host}:{self.prefill.port}"
        with httpx.Client(trust_env=False, verify=False) as client:
            ranks = client.get(f"{registry}/query").json()
        return {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": registry,
            "remote_engine_id": ranks["0"]["engine_id"],
            "transfer_id": f"xfer-{self.id}",
        }

    def _post(self, url: str, body: Json) -> httpx.Response:
        with httpx.Client(trust_env=False, verify=False, timeout=self.timeout) as client:
            return client.post(f"{url}{self.path}", json=body, headers={"x-request-id": self.id})
