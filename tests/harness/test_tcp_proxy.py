"""The bad network itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.harness.tcp_proxy import Stop, TcpProxy, Way


class Echo:
    """Sends back what it gets; tells what it got, and how its peer ended."""

    def __init__(self) -> None:
        self.got = b""
        self.end: str | None = None
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as peer:
            try:
                while data := peer.recv(1 << 16):
                    self.got += data
                    peer.sendall(data)
                self.end = "fin"
                peer.sendall(b"bye")
            except OSError:
                self.end = "rst"
        self.ended.set()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(echo.port) as running:
        yield running


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 10.0)


def read_all(peer: socket.socket) -> tuple[bytes, str]:
    """What came, and how it ended."""
    data = b""
    try:
        while piece := peer.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        return data, "rst"
    return data, "fin"


def test_a_good_network_changes_nothing(echo: Echo, proxy: TcpProxy) -> None:
    sent = bytes(range(256)) * 4000
    with connect(proxy) as peer:
        threading.Thread(
            target=lambda: (peer.sendall(sent), peer.shutdown(socket.SHUT_WR)), daemon=True
        ).start()
        assert read_all(peer) == (sent + b"bye", "fin")
    assert echo.got == sent
    assert (proxy.connections, proxy.passed_up, proxy.passed_down) == (
        1,
        len(sent),
        len(sent) + 3,
    )


@pytest.mark.parametrize("stop", [Stop.FIN, Stop.RST])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_so_many_bytes_pass_and_then_both_ends_are_closed(
    echo: Echo, proxy: TcpProxy, stop: Stop, size: int
) -> None:
    proxy.behave(down=Way(stop_after=size, stop=stop))
    with connect(proxy) as peer:
        peer.sendall(b"hello")
        assert read_all(peer) == (b"hello"[:size], stop.value)
    assert echo.ended.wait(10.0)
    assert echo.got == b"hello"


def test_what_is_sent_up_can_be_cut_too(echo: Echo, proxy: TcpProxy) -> None:
    proxy.behave(up=Way(stop_after=3, stop=Stop.RST))
    with connect(proxy) as peer:
        peer.sendall(b"hello")
        assert read_all(peer)[1] == "rst"
    assert echo.ended.wait(10.0)
    assert echo.got == b"hel"
    assert echo.end == "rst"


def test_half_closed_goes_on_in_the_other_direction(echo: Echo, proxy: TcpProxy) -> None:
    proxy.behave(up=Way(stop_after=5, stop=Stop.HALF))
    with connect(proxy) as peer:
        peer.sendall(b"hello")
        assert read_all(peer) == (b"hellobye", "fin")
    assert echo.end == "fin"


def test_frozen_stays_open_and_silent(echo: Echo, proxy: TcpProxy) -> None:
    proxy.behave(down=Way(stop_after=2, stop=Stop.FREEZE))
    with connect(proxy) as peer:
        peer.sendall(b"hello")
        assert peer.recv(10) == b"he"
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        assert not echo.ended.is_set()


def test_trickles_and_delays(echo: Echo, proxy: TcpProxy) -> None:
    proxy.behave(up=Way(delay=0.1), down=Way(segment=1, gap=0.05))
    with connect(proxy) as peer:
        began = time.monotonic()
        peer.sendall(b"abc")
        assert peer.recv(10) == b"a"
        first = time.monotonic()
        assert peer.recv(10) == b"b"
        assert peer.recv(10) == b"c"
        assert first - began >= 0.1
        assert time.monotonic() - first >= 0.08


def test_knobs_hold_for_new_connections(echo: Echo, proxy: TcpProxy) -> None:
    with connect(proxy) as peer:
        peer.sendall(b"a")
        assert peer.recv(10) == b"a"
        proxy.behave(down=Way(stop_after=0))
        peer.sendall(b"b")
        assert peer.recv(10) == b"b"


def test_stopping_resets_and_refuses(echo: Echo, proxy: TcpProxy) -> None:
    with connect(proxy) as peer:
        peer.sendall(b"a")
        assert peer.recv(10) == b"a"
        proxy.stop()
        assert read_all(peer)[1] == "rst"
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)


def test_a_target_that_refuses_closes_the_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    with TcpProxy(port) as proxy, connect(proxy) as peer:
        assert read_all(peer)[0] == b""
