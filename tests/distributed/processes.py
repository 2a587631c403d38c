"""Starts and ends the processes of a run."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
LIMIT = 300  # seconds, after which a process counts as hanging


def free_ports(count: int) -> list[int]:
    """Finds ports of this machine that are free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Run:
    """`count` processes of one command.

    Args:
        command: of keras-albert, with its options.
        folder: where what they print is kept.
        devices: virtual ones of each.
        options: further ones, by process.
    """

    def __init__(
        self,
        backend: str,
        command: list[str],
        folder: Path,
        count: int = 1,
        devices: int = 1,
        wait: int = 120,
        options: dict[int, list[str]] | None = None,
    ):
        self.logs = [folder / f"process-{index}.txt" for index in range(count)]
        ports = free_ports(count)
        self.processes = []
        for index in range(count):
            environment = dict(os.environ, KERAS_BACKEND=backend)
            environment["OMP_NUM_THREADS"] = "1"
            told = [f"--processes.wait={wait}"] if count > 1 else []
            if count > 1 and backend == "tensorflow":
                cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
                task = {"type": "worker", "index": index}
                environment["TF_CONFIG"] = json.dumps(
                    {"cluster": cluster, "task": task}
                )
            elif count > 1:
                told += [
                    f"--processes.coordinator=127.0.0.1:{ports[0]}",
                    f"--processes.count={count}",
                    f"--processes.index={index}",
                ]
            told += (options or {}).get(index, [])
            with open(self.logs[index], "w") as log:
                process = subprocess.Popen(
                    [sys.executable, WORKER, str(devices), *command, *told],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            self.processes.append(process)

    def text(self, index: int = 0) -> str:
        """What a process has printed."""
        return self.logs[index].read_text(errors="replace")

    def until(self, condition) -> None:
        """Waits for a condition; fails when a process ends before."""
        end = time.monotonic() + LIMIT
        try:
            while not condition():
                assert time.monotonic() < end, "hanging:\n" + self.text()
                for index, process in enumerate(self.processes):
                    assert process.poll() is None, self.text(index)
                time.sleep(0.05)
        except AssertionError:
            self.ends(0)
            raise

    def kill(self, index: int, number=signal.SIGKILL) -> None:
        """Sends a signal to a process."""
        self.processes[index].send_signal(number)

    def ends(self, limit: float = LIMIT) -> list[int]:
        """The exit statuses; what has not ended by then is killed."""
        end = time.monotonic() + limit
        statuses = []
        for process in self.processes:
            try:
                left = max(0.1, end - time.monotonic())
                statuses.append(process.wait(left))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                statuses.append("hanging")
        return statuses
