"""Processes of a run find one another, or say who is missing."""

import contextlib
import socket
import sys
import time

from keras_albert.config import AlbertError, LostProcess, ProcessConfig

_MESSAGE, _ANSWER = 16, 5  # bytes, and seconds to say which process it is
_ALL_CAME = b"all came"


def meet(processes: ProcessConfig) -> None:
    """All processes, at the address where a library then lets them meet.

    Libraries wait there for ever, or abort without a word that helps.

    Args:
        processes: with all that is to be known of them.

    Raises:
        LostProcess: some do not come, `wait` seconds long.
        AlbertError: process 0 cannot listen there.
    """
    if processes.count == 1:
        return
    end = time.monotonic() + processes.wait
    (_wait_for_process_0 if processes.index else _wait_for_others)(
        processes, end
    )


def _wait_for_others(processes: ProcessConfig, end: float) -> None:
    place, wait = processes.coordinator, processes.wait
    expected, came = range(1, processes.count), {}
    print(
        f"process 0 waits up to {wait} s at {place} for {len(expected)} more",
        file=sys.stderr,
        flush=True,
    )
    try:
        server = socket.create_server(("", int(place.rpartition(":")[2])))
    except OSError as error:
        raise AlbertError(
            f"process 0 cannot listen at {place} ({error.strerror}). Choose "
            "another port for all processes."
        ) from None
    with contextlib.closing(server):
        while missing := [i for i in expected if not _is_there(came.get(i))]:
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                connection, _ = server.accept()
                connection.settimeout(_ANSWER)
                # One that has been started again takes its own place.
                came[int(connection.recv(_MESSAGE))] = connection
            except (OSError, ValueError):  # no word from any of ours
                if time.monotonic() > end:
                    names = ", ".join(map(str, missing))
                    raise LostProcess(
                        f"process 0: of {processes.count} processes did not "
                        f"come to {place} in {wait} s: {names}. Start all of "
                        "them, each with its own index."
                    ) from None
        for connection in came.values():
            # They close first: the port is free at once.
            with contextlib.suppress(OSError), connection:
                connection.settimeout(_ANSWER)
                connection.sendall(_ALL_CAME)
                connection.recv(_MESSAGE)


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


def _wait_for_process_0(processes: ProcessConfig, end: float) -> None:
    host, _, port = processes.coordinator.rpartition(":")
    reason = "no answer"
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, int(port)), left) as server:
                server.sendall(str(processes.index).encode())
                reason = "it waits for others"
                if server.recv(_MESSAGE) == _ALL_CAME:
                    return
        except TimeoutError:
            break
        except OSError as error:
            reason = error
        time.sleep(0.5)
    raise LostProcess(
        f"process {processes.index}: process 0 does not answer at "
        f"{processes.coordinator} in {processes.wait} s ({reason}). Start it "
        "there, open that port, or correct the address."
    )
