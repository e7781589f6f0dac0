"""Group 2: what counts as the same prompt, and where it was.

"Home" is the backend that served the earlier part of a conversation. A match is given in nominal
tokens of four key bytes; keys hold a few marker bytes beside the text, hence `NEAR`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from gateway.prefix.blocks import BlockScale
from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import ALL, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Json, Route, text

BLOCK = 128
"""Bytes of the first blocks of a key."""
NEAR = 64
"""Key bytes that a message's role and markers take at most."""
by_route = pytest.mark.parametrize("route", ALL, ids=lambda route: route.name)


class Site:
    """A gateway and the backends behind it.

    Attributes:
        home: the backend that got the last request.
    """

    def __init__(self, gw: GatewayProcess, backends: Sequence[FakeBackend]) -> None:
        self.gw = gw
        self.backends = backends
        self.home = backends[0]

    def send(self, path: str, body: Any) -> httpx.Response:
        before = [len(backend.requests) for backend in self.backends]
        answer = self.gw.post(path, body)
        for backend, count in zip(self.backends, before, strict=True):
            if len(backend.requests) > count:
                self.home = backend
        return answer

    def place(self, path: str, body: Any) -> FakeBackend:
        """Where a request goes."""
        answer = self.send(path, body)
        assert answer.status_code == 200, answer.text
        return self.home

    def matched(self, path: str, body: Any) -> int:
        """Key bytes of a request that are believed to be where it would go."""
        return 4 * self.gw.explain(path, body).matched_tokens

    def matched_at(self, backend: FakeBackend, path: str, body: Any) -> int:
        """Key bytes of a request that are believed to be at that backend."""
        blocks = self.gw.explain(path, body).blocks.get(self.gw.backend_id(backend.url), 0)
        return BlockScale().span(blocks)


@pytest.fixture(scope="module")
def shared_site(module_gateway: StartGateway) -> Iterator[Site]:
    with FakeBackend() as a, FakeBackend() as b, FakeBackend() as c:
        backends = [a, b, c]
        yield Site(module_gateway(backends), backends)


@pytest.fixture
def site(shared_site: Site) -> Site:
    for backend in shared_site.backends:
        backend.reset()
    shared_site.gw.admin("POST", "/index/flush", {})
    return shared_site


def completion(prompt: Any, **members: Any) -> Json:
    return {"model": "m", "prompt": prompt, **members}


def chat(*messages: tuple[str, Any], **members: Any) -> Json:
    return {
        "model": "m",
        "messages": [{"role": role, "content": content} for role, content in messages],
        **members,
    }


def prefix_decisions(site: Site) -> float:
    return site.gw.metrics().total("prefixgate_decisions_total", reason="prefix")


# K02


@by_route
def test_K02_every_content_route_has_a_key(site: Site, route: Route) -> None:
    before = prefix_decisions(site)
    matched = 0
    stayed = 0
    for conversation in range(10):
        turns: list[str] = []
        first = None
        for turn in range(5):
            turns.append(text(f"K02 {route.name} {conversation} {turn}", 1500))
            answer = site.send(route.path, route.body(turns))
            assert answer.status_code == 200
            matched += int(answer.headers["x-prefixgate-matched-tokens"]) > 0
            first = first or site.home
            stayed += site.home is first
    assert matched >= 35
    assert stayed == 50
    assert prefix_decisions(site) - before >= 35


@by_route
def test_K02_an_empty_key_is_counted(site: Site, route: Route) -> None:
    before = site.gw.metrics()
    assert site.send(route.path, {"model": "m"}).status_code == 200
    after = site.gw.metrics()
    name = "prefixgate_unkeyed_requests_total"
    assert after.total(name) - before.total(name) == 1


# K03

WHOLE = text("K03", 4000)
SPLIT = ("user", WHOLE[:1500]), ("user", WHOLE[1500:])


@pytest.mark.parametrize(
    ("other", "common"),
    [
        ((("user", WHOLE[:1700]), ("user", WHOLE[1700:])), 1500),
        ((("user", WHOLE[:1499]), ("user", WHOLE[1499:])), 1499),
        ((("user", WHOLE),), 1500),
        ((("user", WHOLE[:1500]), ("assistant", WHOLE[1500:])), 1500),
        ((("assistant", WHOLE[:1500]), ("user", WHOLE[1500:])), 0),
        ((("system", WHOLE[:1500]), ("user", WHOLE[1500:])), 0),
        ((("user", WHOLE[:1500]), ("user", ""), ("user", WHOLE[1500:])), 1500),
        ((("user", ""), *SPLIT), 0),
    ],
)
def test_K03_message_boundaries_are_part_of_the_key(
    site: Site, other: tuple[tuple[str, str], ...], common: int
) -> None:
    site.place(CHAT.path, chat(*SPLIT))
    same = site.matched(CHAT.path, chat(*SPLIT))
    assert len(WHOLE) - 512 <= same <= len(WHOLE) + NEAR
    assert site.matched(CHAT.path, chat(*other)) <= common + NEAR


def test_K03_single_letters(site: Site) -> None:
    """The case's own input; too short for a block, so told apart by what follows."""
    tail = ("assistant", text("K03 tail", 2000))
    site.place(CHAT.path, chat(("user", "ab"), ("user", "c"), tail))
    assert site.matched(CHAT.path, chat(("user", "ab"), ("user", "c"), tail)) > 1000
    assert site.matched(CHAT.path, chat(("user", "a"), ("user", "bc"), tail)) == 0
    assert site.matched(CHAT.path, chat(("user", "ab"), ("assistant", "c"), tail)) == 0
    assert site.matched(CHAT.path, chat(("assistant", "ab"), ("user", "c"), tail)) == 0


# K05

PROMPTS: list[Any] = [
    "s",
    ["s", "t"],
    [1, 2, 3],
    [[1, 2], [3]],
    [],
    "",
    [[]],
    None,
    {"a": 1},
    5,
    [1.5],
    ["s", 1],
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=json.dumps)
def test_K05_any_prompt_is_forwarded(site: Site, prompt: Any) -> None:
    body = json.dumps(completion(prompt, future=[1])).encode()
    assert site.send(COMPLETIONS.path, body).status_code == 200
    assert site.home.requests[-1].body == body


@pytest.mark.parametrize("content", [*PROMPTS, [{"type": "future"}], [None]], ids=json.dumps)
@pytest.mark.parametrize("route", [CHAT, MESSAGES, RESPONSES], ids=lambda route: route.name)
def test_K05_any_messages_too(site: Site, route: Route, content: Any) -> None:
    member = "input" if route is RESPONSES else "messages"
    for value in (content, [{"role": "user", "content": content}]):
        body = json.dumps({"model": "m", member: value}).encode()
        assert site.send(route.path, body).status_code == 200
        assert site.home.requests[-1].body == body


# K06


def ids(seed: int, count: int) -> list[int]:
    return [(seed * 7919 + number * 104_729) % 128_000 for number in range(count)]


def test_K06_token_ids_are_keyed_by_content(site: Site) -> None:
    first = {seed: site.place(COMPLETIONS.path, completion(ids(seed, 512))) for seed in range(30)}
    spread = Counter(id(backend) for backend in first.values())
    assert len(spread) == 3
    assert min(spread.values()) >= 4
    again = [
        site.place(COMPLETIONS.path, completion(ids(seed, 512) + ids(seed + 100, 16))) is home
        for seed, home in first.items()
    ]
    assert sum(again) >= 27


# K08


@pytest.mark.parametrize("kind", ["texts", "token ids"])
def test_K08_batched_prompts(site: Site, kind: str) -> None:
    def part(name: str) -> Any:
        return text(f"K08 {name}", 4096) if kind == "texts" else ids(len(name) * ord(name[0]), 1024)

    x, y, z = part("X"), part("Y"), part("Z")
    more = "a" * 200 if kind == "texts" else [7] * 50
    home = site.place(COMPLETIONS.path, completion([x, y]))
    answer = site.send(COMPLETIONS.path, completion([x, y]))
    assert site.home is home
    assert 4 * int(answer.headers["x-prefixgate-matched-tokens"]) >= 3500
    assert site.matched_at(home, COMPLETIONS.path, completion([x + more, z])) >= 3500
    assert site.place(COMPLETIONS.path, completion([x + more, z])) is home
    # a list of one is the plain prompt
    one = site.matched_at(home, COMPLETIONS.path, completion([x]))
    assert one == site.matched_at(home, COMPLETIONS.path, completion(x)) >= 3500
    # the second of a batch is no prefix
    assert site.matched(COMPLETIONS.path, completion(z)) == 0


# K09


def test_K09_a_block_in_the_middle_is_not_a_prefix(site: Site) -> None:
    s1 = text("K09 S1", 8192)
    a = site.place(COMPLETIONS.path, completion(s1))
    for number in range(100):
        s2 = text(f"K09 S2 {number}", 8192)
        b = site.place(COMPLETIONS.path, completion(s2))
        if b is not a:
            break
    assert b is not a
    both = completion(s2 + s1)
    # every block size divides 8192, so the match is S2 exactly
    assert site.matched_at(b, COMPLETIONS.path, both) == 8192
    assert site.matched_at(a, COMPLETIONS.path, both) == 0
    assert site.place(COMPLETIONS.path, both) is b
    assert site.place(COMPLETIONS.path, completion(s1)) is a
    other = completion(text("K09 other", BLOCK) + s1)
    assert site.gw.explain(COMPLETIONS.path, other).tokens == {}


# K11


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS], ids=lambda route: route.name)
def test_K11_a_reloaded_adapter_starts_empty(
    start_backend: StartBackend, gateway: StartGateway, route: Route
) -> None:
    backends = [start_backend("base", "lora-1", "lora-2") for _ in range(2)]
    site = Site(gateway(backends), backends)
    turns = [text("K11", 8000)]
    bodies = {name: {**route.body(turns), "model": name} for name in backends[0].models}
    for body in bodies.values():
        site.place(route.path, body)
    assert all(site.matched(route.path, body) >= 7000 for body in bodies.values())
    site.gw.admin("POST", "/index/flush", {"model": "lora-1"})
    assert site.matched(route.path, bodies["lora-1"]) == 0
    assert site.matched(route.path, bodies["lora-2"]) >= 7000
    assert site.matched(route.path, bodies["base"]) >= 7000
    # and it learns anew
    home = site.place(route.path, bodies["lora-1"])
    assert site.matched_at(home, route.path, bodies["lora-1"]) >= 7000


def test_K11_adapters_do_not_share(start_backend: StartBackend, gateway: StartGateway) -> None:
    backends = [start_backend("base", "lora-1", "lora-2")]
    site = Site(gateway(backends), backends)
    body = CHAT.body([text("K11", 8000)])
    site.place(CHAT.path, {**body, "model": "lora-1"})
    assert site.matched(CHAT.path, {**body, "model": "lora-2"}) == 0
    assert site.matched(CHAT.path, {**body, "model": "base"}) == 0


def test_K11_what_was_flushed_weighs_nothing(site: Site) -> None:
    """A backend whose cache was full of what is now forgotten takes new prompts again."""
    turns = [text("K11 turn", 3000)]
    full = site.place(CHAT.path, CHAT.body(turns))
    for number in range(15):
        turns.append(text(f"K11 {number}", 3000))
        assert site.place(CHAT.path, CHAT.body(turns)) is full
    site.gw.admin("POST", "/index/flush", {})
    places = [site.place(CHAT.path, CHAT.body([text(f"K11 new {n}", 2000)])) for n in range(30)]
    assert places.count(full) >= 4


# K12


@pytest.mark.parametrize("member", ["cache_salt", "extra_key"])
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS], ids=lambda route: route.name)
def test_K12_salts_part_the_key(site: Site, route: Route, member: str) -> None:
    turns = [text("K12", 8000)]
    body = route.body(turns)
    a = site.place(route.path, {**body, member: "t1"})
    assert a.requests[-1].json[member] == "t1"
    # A is loaded heavier than the others: the salted conversation keeps it busy
    a.behave(ttft=3.0)
    busy = [site.gw.client() for _ in range(4)]
    for number, client in enumerate(busy):
        client.request(route.path, {**route.body([*turns, f"more {number}"]), member: "t1"})
    a.wait_requests(5)
    explained = site.gw.explain(route.path, {**body, member: "t2"})
    assert explained.tokens == {}
    assert site.place(route.path, {**body, member: "t2"}) is not a
    for client in busy:
        client.close()
    a.behave()

    home = site.place(route.path, body)
    assert home.requests[-1].json == body
    for absent in ("", None):
        salted = json.dumps({**body, member: absent}).encode()
        assert site.matched_at(home, route.path, json.loads(salted)) >= 7000
        assert site.place(route.path, salted) is home
        assert home.requests[-1].body == salted


# K14

LONG = "hi, " + text("K14", 4000)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@pytest.mark.parametrize("role", ["user", "system"])
def test_K14_content_arrays_of_text_are_text(site: Site, role: str) -> None:
    plain = chat((role, LONG), ("user", "go on"))
    blocks = chat((role, [{"type": "text", "text": LONG}]), ("user", "go on"))
    home = site.place(CHAT.path, plain)
    same = site.matched_at(home, CHAT.path, plain)
    assert same >= 3500
    assert site.matched_at(home, CHAT.path, blocks) == same
    assert site.place(CHAT.path, blocks) is home


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "user", "content": []},
        {"role": "tool", "content": None, "tool_call_id": "c"},
    ],
    ids=["null", "absent", "empty list", "empty tool answer"],
)
def test_K14_messages_without_text_route_as_well(site: Site, message: Json) -> None:
    history = [{"role": "user", "content": LONG}, message]
    body = {"model": "m", "messages": history}
    home = site.place(CHAT.path, body)
    follow = {"model": "m", "messages": [*history, {"role": "user", "content": "next"}]}
    assert site.matched_at(home, CHAT.path, follow) >= 3500
    assert site.place(CHAT.path, follow) is home


# K15

SYSTEM = text("K15 system", 3000)


def anthropic(turns: Sequence[str], system: Any) -> Json:
    return {**MESSAGES.body(turns), "system": system}


def with_cache_mark(turns: Sequence[str]) -> Json:
    """As agents do it: the mark for the cache moves on with every turn."""
    body = MESSAGES.body(turns)
    last = body["messages"][-1]
    mark = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
    last["content"] = [mark]
    return {**body, "system": SYSTEM}


def response(turns: Sequence[str], **members: Any) -> Json:
    return {**RESPONSES.body(turns), **members}


def text_input(turns: Sequence[str]) -> Json:
    """A string input: what comes later can only be more of it."""
    return {"model": "m", "instructions": SYSTEM, "input": "\n".join(turns)}


K15: dict[str, tuple[Route, Callable[[Sequence[str]], Json]]] = {
    "messages, system as text": (MESSAGES, lambda turns: anthropic(turns, SYSTEM)),
    "messages, system as blocks": (
        MESSAGES,
        lambda turns: anthropic(turns, [{"type": "text", "text": SYSTEM}]),
    ),
    "messages, no system": (MESSAGES, MESSAGES.body),
    "messages, moving cache mark": (MESSAGES, with_cache_mark),
    "responses, input as text": (RESPONSES, text_input),
    "responses, items and instructions": (
        RESPONSES,
        lambda turns: response(turns, instructions=SYSTEM),
    ),
    "responses, items": (RESPONSES, response),
}


@pytest.mark.parametrize("name", list(K15))
def test_K15_second_turns_come_home(site: Site, name: str) -> None:
    route, body = K15[name]
    for conversation in range(6):
        question, reply = (text(f"{name} {conversation} {part}", 1500) for part in "qa")
        home = site.place(route.path, body([question]))
        second = body([question, reply, "and then?"])
        assert site.matched_at(home, route.path, second) >= 1000
        before = prefix_decisions(site)
        assert site.place(route.path, second) is home
        assert prefix_decisions(site) - before == 1


def test_K15_system_as_text_or_blocks_is_the_same(site: Site) -> None:
    turns = [text("K15 q", 2000)]
    home = site.place(MESSAGES.path, anthropic(turns, SYSTEM))
    blocks = anthropic(turns, [{"type": "text", "text": SYSTEM}])
    plain = site.matched_at(home, MESSAGES.path, anthropic(turns, SYSTEM))
    assert site.matched_at(home, MESSAGES.path, blocks) == plain >= 4000


# K17

ODD = (
    b'{"z":1.0,  "a": 1e5 ,"big":18446744073709551617,"neg":-0.0,"model" :"m",\t"esc":"\\u00e9",'
    b'"raw":"\xc3\xa9\xf0\x9f\x8c\x8d","surrogate":"\\ud83c\\udf0d","lone":"\\ud800","slash":"\\/",'
    b'"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",'
    b'"properties":{"zebra":{"type":"string"},"apple":{"type":"number"},"mango":{}}}}}],'
    b'"z":2,%b}\r\n '
)
CONTENT = {
    "chat": b'"messages":[{"content":"hi  there","role":"user"}]',
    "completions": b'"prompt":"hi  there"',
    "responses": b'"input":"hi  there"',
    "messages": b'"max_tokens":5,"messages":[{"content":"hi  there","role":"user"}]',
    "embeddings": b'"input":["hi  there"]',
    "rerank": b'"query":"hi","documents":["a"]',
    "score": b'"text_1":"hi","text_2":"a"',
}


@by_route
@pytest.mark.parametrize("streaming", [False, True])
def test_K17_the_body_is_not_rewritten(site: Site, route: Route, streaming: bool) -> None:
    content = CONTENT[route.name] + (b',"stream": true' if streaming else b"")
    body = ODD % content
    for _ in range(2):
        assert site.send(route.path, body).status_code == 200
        assert site.home.requests[-1].body == body
        assert site.home.requests[-1].header(b"content-length") == str(len(body)).encode()


def test_K17_chunked_bodies_arrive_whole(site: Site) -> None:
    body = ODD % CONTENT["chat"]
    with site.gw.client() as client:
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for at in range(0, len(body), 50):
            part = body[at : at + 50]
            client.send(b"%x\r\n%b\r\n" % (len(part), part))
        client.send(b"0\r\n\r\n")
        assert client.answer().status == 200
    [request] = [request for backend in site.backends for request in backend.requests]
    assert request.body == body


# K18


def test_K18_hashes_agree_between_processes(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Without Redis: each process alone sends the same new prompts to the same backends, finds
    the same matches, and knows each backend by the same id, whatever Python's own hash seed."""
    backends = [start_backend() for _ in range(3)]
    told = []
    for seed in ("1", "2", "random"):
        gw = gateway(backends, environment={"PYTHONHASHSEED": seed})
        site = Site(gw, backends)
        places = []
        for number in range(12):
            body = CHAT.body([text(f"K18 {number}", 6000)])
            home = backends.index(site.place(CHAT.path, body))
            follow = gw.explain(CHAT.path, CHAT.body([text(f"K18 {number}", 6000), "b", "c"]))
            places.append((home, follow.backend, follow.tokens))
        told.append(places)
        gw.stop()
    assert told[0] == told[1] == told[2]
    assert len({home for home, _, _ in told[0]}) > 1


# K20


def test_K20_last_block_counted_and_colons_in_addresses(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    try:
        backend = start_backend(host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    gw = gateway([backend])
    site = Site(gw, [backend])
    prompt = text("K20", 4 * BLOCK)
    for sent in (prompt, [ord(letter) for letter in prompt[:BLOCK]]):
        body = completion(sent)
        assert site.place(COMPLETIONS.path, body) is backend
        explained = gw.explain(COMPLETIONS.path, body)
        assert explained.blocks == {gw.backend_id(backend.url): 4}
        answer = site.send(COMPLETIONS.path, body)
        assert answer.headers["x-prefixgate-matched-tokens"] == str(BLOCK)
        assert answer.headers["x-prefixgate-backend"] == gw.backend_id(backend.url)
    assert backend.requests[0].header(b"host") == f"[::1]:{backend.port}".encode()


# K21


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 500, 502, 503])
@pytest.mark.parametrize("streaming", [False, True])
def test_K21_only_successful_prefills_are_remembered(
    start_backend: StartBackend, gateway: StartGateway, status: int, streaming: bool
) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway([a, b], breaker={"failures": 1000})
    site = Site(gw, [a, b])
    turns = [text("K21", 8000)]
    body = CHAT.stream(turns) if streaming else CHAT.body(turns)
    a.behave(status=status)
    b.behave(status=status)
    for _ in range(3):
        site.send(CHAT.path, body)
    assert a.requests or b.requests
    explained = gw.explain(CHAT.path, body)
    assert explained.tokens == {}
    assert gw.metrics().total("prefixgate_index_blocks") == 0
    # whoever serves it at last owns it, alone
    a.behave()
    b.behave()
    home = site.place(CHAT.path, body)
    assert list(gw.explain(CHAT.path, body).blocks) == [gw.backend_id(home.url)]


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_K21_a_retry_teaches_only_the_one_that_served(
    start_backend: StartBackend, gateway: StartGateway, status: int
) -> None:
    """A refuses X, the client's retry lands on B (A is drained meanwhile): only B owns X."""
    a, b = start_backend(), start_backend()
    gw = gateway([a, b], breaker={"failures": 1000})
    site = Site(gw, [a, b])
    body = CHAT.body([text("K21", 8000)])
    a.behave(status=status)
    b.behave(status=status)
    site.send(CHAT.path, body)
    refused, other = (a, b) if a.requests else (b, a)
    other.behave()
    gw.admin("POST", f"/backends/{gw.backend_id(refused.url)}/drain")
    for _ in range(2):
        assert site.place(CHAT.path, body) is other
    assert list(gw.explain(CHAT.path, body).blocks) == [gw.backend_id(other.url)]
