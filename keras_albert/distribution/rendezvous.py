"""Processes of a run find one another, or say who is missing."""

import contextlib
import socket
import sys
import time

from keras_albert.distribution.config import ProcessConfig
from keras_albert.errors import AlbertError, LostProcess

_MESSAGE = 1000  # bytes
_ANSWER = 5  # seconds for what takes none where all is well
# What process 0 tells the others, the last two with their message.
_ALL_CAME, _LOST, _MISTAKE = "came", "lost", "mistake"


def meet(processes: ProcessConfig) -> None:
    """All processes, at the address where a library then lets them meet.

    Libraries wait there for ever, or abort without a word that helps.

    Args:
        processes: with all that is to be known of them.

    Raises:
        LostProcess: some do not come, `wait` seconds long.
        AlbertError: process 0 cannot listen there; or they do not agree on
            how many they are, or which of them each is.
    """
    if processes.count == 1:
        return
    end = time.monotonic() + processes.wait
    (_wait_for_process_0 if processes.index else _wait_for_others)(
        processes, end
    )


def _wait_for_others(processes: ProcessConfig, end: float) -> None:
    place = processes.coordinator
    print(
        f"process 0 waits up to {processes.wait} s at {place} for "
        f"{processes.count - 1} more",
        file=sys.stderr,
        flush=True,
    )
    try:
        server = _listening(int(place.rpartition(":")[2]))
    except OSError as error:
        raise AlbertError(
            f"process 0 cannot listen at {place} ({error.strerror}). Choose "
            "another port for all processes."
        ) from None
    came = []
    try:
        # Closed before they are told: they go to the library at once.
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
    """Waits until all have come; adds the connection of each to `came`."""
    others: dict[int, socket.socket] = {}
    while missing := [
        index
        for index in range(1, processes.count)
        if not _is_there(others.get(index))
    ]:
        server.settimeout(max(0.01, end - time.monotonic()))
        try:
            connection, _ = server.accept()
            connection.settimeout(_ANSWER)
            index, count = map(int, connection.recv(_MESSAGE).split(b"/"))
        except (OSError, ValueError):  # no word of ours
            if time.monotonic() > end:
                raise LostProcess(
                    f"of {processes.count} processes did not come to "
                    f"{processes.coordinator} in {processes.wait} s: "
                    f"{', '.join(map(str, missing))}. Start all of them, each "
                    "with its own index."
                ) from None
            continue
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
    """Whether a process has come, and has not gone again."""
    if connection is None:
        return False
    connection.setblocking(False)
    try:
        return connection.recv(_MESSAGE) != b""
    except BlockingIOError:  # it waits in silence
        return True
    except OSError:
        return False


def _tell(came: list[socket.socket], verdict: str) -> None:
    """Says it to all; they close first, so that the port is free at once."""
    end = time.monotonic() + _ANSWER
    for ask in (False, True):
        for connection in came:
            with contextlib.suppress(OSError):
                connection.settimeout(max(0.01, end - time.monotonic()))
                if ask:
                    connection.recv(_MESSAGE)
                    connection.close()
                else:
                    connection.sendall(f"{verdict}\n".encode())


def _wait_for_process_0(processes: ProcessConfig, end: float) -> None:
    place = processes.coordinator
    host, _, port = place.rpartition(":")
    address = (host.strip("[]"), int(port))
    is_there, reason = False, "no answer"
    while (left := end - time.monotonic()) > 0:
        is_there = False
        try:
            with socket.create_connection(address, min(left, _ANSWER)) as there:
                there.sendall(f"{processes.index}/{processes.count}".encode())
                is_there = True
                there.settimeout(max(0.01, end - time.monotonic()))
                answer = there.makefile().readline()
        except OSError as error:
            reason = error
        else:
            word, _, message = answer.strip().partition(" ")
            if word == _ALL_CAME:
                return
            if word in (_LOST, _MISTAKE):
                raise (LostProcess if word == _LOST else AlbertError)(message)
            is_there, reason = False, "it has gone again"
        time.sleep(0.5)
    if is_there:
        raise LostProcess(
            f"process {processes.index}: process 0 is at {place}, others did "
            f"not come in {processes.wait} s. Start all of them, each with its "
            "own index."
        )
    raise LostProcess(
        f"process {processes.index}: process 0 does not answer at {place} in "
        f"{processes.wait} s ({reason}). Start it there, open that port, or "
        "correct the address."
    )
