"""Processes of a run find one another, or say who is missing."""

import contextlib
import socket
import sys
import time

from keras_albert.config import AlbertError, LostProcess, ProcessConfig

_MESSAGE, _ANSWER = 32, 5  # bytes, and seconds to say which process it is
_ALL_CAME, _OTHER_COUNT = b"all came", b"other count "


def meet(processes: ProcessConfig) -> None:
    """All processes, at the address where a library then lets them meet.

    Libraries wait there for ever, or abort without a word that helps.

    Args:
        processes: with all that is to be known of them.

    Raises:
        LostProcess: some do not come, `wait` seconds long.
        AlbertError: process 0 cannot listen there; or they do not agree on
            how many they are.
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
                index, count = map(int, connection.recv(_MESSAGE).split(b"/"))
                if count != processes.count:
                    told = _OTHER_COUNT + str(processes.count).encode()
                    connection.sendall(told)
                    raise _differ(processes.count, index, count)
                # One that has been started again takes its own place.
                came[index] = connection
            except AlbertError:
                raise
            except (OSError, ValueError):  # no word of ours
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
    is_there, reason = False, "no answer"
    me = f"{processes.index}/{processes.count}".encode()
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, int(port)), left) as server:
                server.sendall(me)
                is_there = True
                answer = server.recv(_MESSAGE)
            if answer == _ALL_CAME:
                return
            if answer.startswith(_OTHER_COUNT):
                first = int(answer.removeprefix(_OTHER_COUNT))
                raise _differ(first, processes.index, processes.count)
            is_there = False
        except TimeoutError:
            break
        except OSError as error:
            is_there, reason = False, error
        time.sleep(0.5)
    if is_there:
        raise LostProcess(
            f"process {processes.index}: of {processes.count} processes others "
            f"did not come to {processes.coordinator} in {processes.wait} s; "
            "process 0 did, and says which. Start all of them, each with its "
            "own index."
        )
    raise LostProcess(
        f"process {processes.index}: process 0 does not answer at "
        f"{processes.coordinator} in {processes.wait} s ({reason}). Start it "
        "there, open that port, or correct the address."
    )


def _differ(first: int, index: int, count: int) -> AlbertError:
    return AlbertError(
        f"the processes of a run must agree on how many they are: {first} in "
        f"process 0, {count} in process {index}. Start all of them with the "
        "same --processes.count (TensorFlow: the same cluster in TF_CONFIG)."
    )
