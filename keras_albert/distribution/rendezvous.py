"""Rendezvous: waits until all processes of a run have connected.

TensorFlow, JAX and PyTorch each have a rendezvous of their own. If a process
is missing or misconfigured, theirs waits for ever or aborts without a useful
message. This one therefore runs first, at the same address, and says which
processes are missing or disagree.

The protocol: process 0 listens; every other process connects, sends
"INDEX/COUNT" and waits. When all have connected, or one of them is wrong,
process 0 sends one line to each: "came", or "lost" or "mistake" with an error
message. Then it closes the port, so that the library can listen there.
"""

import contextlib
import socket
import sys
import time

from keras_albert.distribution.config import ProcessConfig
from keras_albert.errors import AlbertError, LostProcess

_MAX_MESSAGE = 1000  # bytes that are read of a message
_ANSWER_SECONDS = 5  # time limit of an exchange, which normally takes none
# The first word of process 0: no error, LostProcess, AlbertError.
_ALL_CAME, _LOST, _MISTAKE = "came", "lost", "mistake"


def wait_for_processes(processes: ProcessConfig) -> None:
    """Blocks until all processes have connected to the coordinator address.

    Raises:
        LostProcess: a process has not connected after `wait` seconds.
        AlbertError: process 0 cannot listen at the address; or the processes
            disagree on their number, or two have the same index.
    """
    if processes.count == 1:
        return
    end = time.monotonic() + processes.wait
    wait = _wait_for_process_0 if processes.index else _wait_for_others
    wait(processes, end)


def _wait_for_others(processes: ProcessConfig, end: float) -> None:
    """Process 0's side of the protocol: listens until all others connect.

    `end` is the time, by `time.monotonic`, at which it gives up.
    """
    address = processes.coordinator
    print(
        f"process 0 waits up to {processes.wait} s at {address} for "
        f"{processes.count - 1} more",
        file=sys.stderr,
        flush=True,
    )
    try:
        server = _listening(int(address.rpartition(":")[2]))
    except OSError as error:
        raise AlbertError(
            f"process 0 cannot listen at {address} ({error.strerror}). Choose "
            "another port for all processes."
        ) from None
    came = []
    try:
        # The server is closed before the others get their answer, since they
        # then connect to the library's rendezvous at the same port.
        with contextlib.closing(server):
            _gather(server, processes, end, came)
    except AlbertError as error:
        word = _LOST if isinstance(error, LostProcess) else _MISTAKE
        _tell(came, f"{word} {error}")
        raise
    _tell(came, _ALL_CAME)


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True
        )
    return socket.create_server(("", port))


def _gather(
    server: socket.socket,
    processes: ProcessConfig,
    end: float,
    came: list[socket.socket],
) -> None:
    """Waits for the other processes; appends their connections to `came`."""
    others: dict[int, socket.socket] = {}
    while missing := [
        index
        for index in range(1, processes.count)
        if not _is_there(others.get(index))
    ]:
        server.settimeout(max(0.01, end - time.monotonic()))
        try:
            connection, _ = server.accept()
            connection.settimeout(_ANSWER_SECONDS)
            index, count = map(int, connection.recv(_MAX_MESSAGE).split(b"/"))
        # Nobody came (timeout), or another program that does not speak this
        # protocol, such as a port scanner: both are ignored until `end`.
        except (OSError, ValueError):
            if time.monotonic() > end:
                raise LostProcess(
                    f"these of the {processes.count} processes did not "
                    f"connect to {processes.coordinator} within "
                    f"{processes.wait} s: "
                    f"{', '.join(map(str, missing))}. Start all of them, each "
                    "with its own index."
                ) from None
            continue
        # A restarted process may connect again with the same index.
        came.append(connection)
        if count != processes.count:
            raise AlbertError(
                "the processes of a run must agree on how many they are: "
                f"{processes.count} in process 0, {count} in process {index}. "
                "Start all of them with the same --processes.count "
                "(TensorFlow: the same cluster in TF_CONFIG)."
            )
        if _is_there(others.get(index)):
            raise AlbertError(
                f"two processes say that they are process {index} of {count}. "
                "Start each of them with its own index."
            )
        others[index] = connection


def _is_there(connection: socket.socket | None) -> bool:
    """Whether a process has connected and is still connected."""
    if connection is None:
        return False
    connection.setblocking(False)
    try:
        return connection.recv(_MAX_MESSAGE) != b""  # b"" if it disconnected
    except BlockingIOError:  # it is connected and has sent nothing
        return True
    except OSError:
        return False


def _tell(came: list[socket.socket], verdict: str) -> None:
    """Sends a line to all connected processes; waits until they disconnect.

    TCP keeps the port of the side that disconnects first for a while
    (TIME_WAIT). Therefore the others do so, and process 0 can listen again.
    """
    end = time.monotonic() + _ANSWER_SECONDS
    for ask in (False, True):
        for connection in came:
            with contextlib.suppress(OSError):
                connection.settimeout(max(0.01, end - time.monotonic()))
                if ask:
                    connection.recv(_MAX_MESSAGE)  # returns at disconnection
                    connection.close()
                else:
                    connection.sendall(f"{verdict}\n".encode())


def _wait_for_process_0(processes: ProcessConfig, end: float) -> None:
    """The side of all processes but 0: connects to process 0 and waits.

    If process 0 does not answer, it tries again until `end`, a time of
    `time.monotonic`.
    """
    coordinator = processes.coordinator
    host, _, port = coordinator.rpartition(":")
    address = (host.strip("[]"), int(port))
    is_there, reason = False, "no answer"
    while (left := end - time.monotonic()) > 0:
        is_there = False
        try:
            with socket.create_connection(
                address, min(left, _ANSWER_SECONDS)
            ) as connection:
                connection.sendall(
                    f"{processes.index}/{processes.count}".encode()
                )
                is_there = True
                connection.settimeout(max(0.01, end - time.monotonic()))
                answer = connection.makefile().readline()
        except OSError as error:
            reason = error
        else:
            word, _, message = answer.strip().partition(" ")
            if word == _ALL_CAME:
                return
            if word in (_LOST, _MISTAKE):
                raise (LostProcess if word == _LOST else AlbertError)(message)
            is_there, reason = False, "it has disconnected"
        time.sleep(0.5)
    if is_there:
        raise LostProcess(
            f"process {processes.index}: process 0 is at {coordinator}, others "
            f"did not come in {processes.wait} s. Start all of them, each with "
            "its own index."
        )
    raise LostProcess(
        f"process {processes.index}: process 0 does not answer at "
        f"{coordinator} in {processes.wait} s ({reason}). Start it there, open "
        "that port, or correct the address."
    )
