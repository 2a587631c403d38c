"""How processes find one another."""

import concurrent.futures
import errno
import socket
import threading
import time
from unittest.mock import Mock

import pytest

from keras_albert.distribution.config import ProcessConfig
from keras_albert.distribution.devices import OneDevice
from keras_albert.distribution.rendezvous import wait_for_processes
from keras_albert.errors import AlbertError, LostProcess

pytestmark = pytest.mark.any_backend


@pytest.fixture
def place():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


def at_once(*calls):
    """What each raised, or None."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        started = [pool.submit(call) for call in calls]
        return [future.exception() for future in started]


def process(place, index, count=4, wait=20):
    return lambda: wait_for_processes(ProcessConfig(place, count, index, wait))


class TwoProcesses(OneDevice):
    """What one of two processes does when both share a text."""

    count = 2

    def __init__(self, index, barrier, texts):
        self.index, self.barrier, self.texts = index, barrier, texts

    def share(self, text):
        self.texts[self.index] = text
        self.barrier.wait(20)
        return [*self.texts]


@pytest.mark.parametrize(
    ("name", "error", "kind"),
    [
        ("first", AlbertError("no such option"), AlbertError),
        ("each", OSError("full"), AlbertError),
        ("each", LostProcess("gone"), LostProcess),
        ("first", ValueError("of a library"), LostProcess),
    ],
)
def test_an_error_reaches_the_other_process(name, error, kind):
    """As a mistake of the user only if it may be one."""
    shared = threading.Barrier(2), [None, None]
    first, second = (TwoProcesses(index, *shared) for index in (0, 1))
    found = at_once(
        lambda: getattr(first, name)(Mock(side_effect=error)),
        lambda: getattr(second, name)(lambda: None),
    )
    assert found[0] is error and type(found[1]) is kind
    assert f"process 0: {error}" in str(found[1])


def test_all_come(place):
    """In any order, or alone; then the address is free for the library."""
    process(place, 0, count=1)()
    calls = [process(place, index) for index in (3, 1, 0, 2)]
    assert at_once(*calls) == [None] * 4
    port = int(place.rpartition(":")[2])
    socket.create_server(("", port)).close()


def test_somebody_else_comes(place):
    """Who sends no number, or nothing; who comes, is killed, and comes again.

    The one that has gone again is waited for, though all have come by then.
    """
    host, _, port = place.rpartition(":")

    def come(words):
        while True:
            try:
                with socket.create_connection((host, int(port))) as there:
                    there.sendall(words)
                return
            except OSError:
                time.sleep(0.05)

    others_came = threading.Event()

    def last():
        for words in (b"GET / HTTP/1.1", b"", b"1/3", b"2/3"):
            come(words)
        others_came.set()
        process(place, 2, count=3)()

    def killed():
        others_came.wait(20)
        process(place, 1, count=3)()

    found = at_once(process(place, 0, count=3), last, killed)
    assert found == [None] * 3


def test_somebody_is_missing(place):
    calls = [process(place, index, wait=2) for index in (0, 2)]
    first, third = at_once(*calls)
    assert isinstance(first, LostProcess) and isinstance(third, LostProcess)
    assert "of the 4 processes did not connect to 127.0.0.1" in str(first)
    assert "in 2 s: 1, 3. Start all of them" in str(first)
    # Whose time is over first?
    assert str(third) == str(first) or (
        "process 2: process 0 is at 127.0.0.1" in str(third)
        and "others did not come in 2 s. Start all" in str(third)
    )


def test_process_0_is_missing(place):
    (second,) = at_once(process(place, 1, wait=1))
    assert isinstance(second, LostProcess)
    assert "process 1: process 0 does not answer" in str(second)
    refused = f"[Errno {errno.ECONNREFUSED}] Connection refused"
    assert f"in 1 s ({refused})" in str(second)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([(1, 3), (2, 4)], "3 in process 0, 4 in process 2. Start all"),
        ([(1, 3), (1, 3)], "two processes say that they are process 1 of 3."),
    ],
)
def test_all_are_told_of_a_mistake(place, others, message, monkeypatch):
    """At once, though one of them might have waited for long."""
    first, last = (process(place, index, count) for index, count in others)
    connect, is_connected = socket.create_connection, threading.Event()

    def connected(*args):
        connection = connect(*args)
        is_connected.set()
        return connection

    def late():
        is_connected.wait(20)
        last()

    monkeypatch.setattr(socket, "create_connection", connected)

    found = at_once(process(place, 0, 3), first, late)
    assert {type(error) for error in found} == {AlbertError}
    assert len(set(map(str, found))) == 1
    assert message in str(found[0])


def test_packets_that_are_lost(place, monkeypatch):
    """The system gives up before the time is over."""
    connect = Mock(side_effect=TimeoutError(110, "Connection timed out"))
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(LostProcess, match=r"in 1 s \(.*timed out\)"):
        process(place, 1, wait=1)()
    assert connect.call_count > 1


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_address_of_ipv6(place):
    place = place.replace("127.0.0.1", "[::1]")
    assert at_once(process(place, 0, 2), process(place, 1, 2)) == [None] * 2


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_what_is_no_port(port):
    with pytest.raises(AlbertError, match="PORT from 1 to 65535"):
        process(f"127.0.0.1:{port}", 0)()


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AlbertError, match=r"cannot listen at .* in use"):
            process(place, 0)()
