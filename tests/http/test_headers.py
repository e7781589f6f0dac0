from gateway.http.headers import read_request, read_response


def test_end_to_end_headers_cross_in_order_and_untouched() -> None:
    headers = [
        (b"x-b", b"2"),
        (b"content-type", b"application/json"),
        (b"x-a", b" spaced,  out "),
        (b"x-b", b"again"),
        (b"authorization", b"Bearer k"),
    ]
    read = read_request(headers)
    assert read.forward == (
        b"x-b: 2\r\ncontent-type: application/json\r\nx-a:  spaced,  out \r\nx-b: again\r\n"
        b"authorization: Bearer k\r\n"
    )
    assert read.content_type == b"application/json"


def test_H06_hop_by_hop_headers_and_those_named_by_connection_stop_here() -> None:
    read = read_request(
        [
            (b"x-secret", b"1"),
            (b"connection", b"close, X-Secret"),
            (b"te", b"trailers"),
            (b"upgrade", b"h2c"),
            (b"proxy-authorization", b"x"),
            (b"keep-alive", b"timeout=5"),
            (b"transfer-encoding", b"chunked"),
            (b"x-kept", b"1"),
        ]
    )
    assert read.forward == b"x-kept: 1\r\n"


def test_the_gateways_own_request_headers_replace_the_clients() -> None:
    read = read_request(
        [
            (b"host", b"gw.example"),
            (b"content-length", b"5"),
            (b"expect", b"100-continue"),
            (b"x-request-id", b"mine"),
            (b"x-session-id", b"s"),
        ]
    )
    assert read.forward == b"x-session-id: s\r\n"
    assert (read.request_id, read.session) == (b"mine", b"s")


def test_what_is_meant_for_the_gateway_is_read_and_stops_here() -> None:
    read = read_request(
        [
            (b"x-prefixgate-priority", b"low"),
            (b"x-prefixgate-ttft-ms", b"500"),
            (b"x-prefixgate-max-wait-ms", b"100"),
            (b"x-prefixgate-unknown", b"1"),
            (b"x-prefix", b"kept"),
            (b"x-api-key", b"k"),
            (b"x-team", b"search"),
        ],
        b"x-team",
    )
    assert read.forward == b"x-prefix: kept\r\nx-api-key: k\r\nx-team: search\r\n"
    assert (read.priority, read.ttft_ms, read.max_wait_ms) == (b"low", b"500", b"100")
    assert (read.credential, read.tenant) == (b"k", b"search")


def test_framing_of_an_answer_is_read_and_not_passed_on() -> None:
    read = read_response([(b"content-length", b"12"), (b"x-a", b"1")])
    assert (read.length, read.forward) == (12, [(b"x-a", b"1")])
    both = read_response([(b"content-length", b"12"), (b"transfer-encoding", b"chunked")])
    assert (both.length, both.forward) == (None, [])
    assert read_response([(b"content-length", b"nonsense")]).length is None


def test_headers_named_by_an_answers_connection_stop_here() -> None:
    read = read_response([(b"connection", b"x-hop"), (b"x-hop", b"1"), (b"x-end", b"2")])
    assert read.forward == [(b"x-end", b"2")]


def test_what_the_relay_must_know_of_an_answer() -> None:
    read = read_response(
        [
            (b"content-type", b"text/event-stream"),
            (b"content-encoding", b" GZIP "),
            (b"cache-control", b"private"),
        ]
    )
    assert read.content_type == b"text/event-stream"
    assert read.content_encoding == b"gzip"
    assert read.cache_control
    assert not read.buffering
