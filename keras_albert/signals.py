"""Handles the signals by which a process is told to end."""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def handled(handler: Callable, *numbers: signal.Signals) -> Iterator[None]:
    """Sets signal handlers, which Python only allows the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            if previous is not None:  # one that was not set from Python
                signal.signal(number, previous)


def signals_as_ctrl_c() -> contextlib.AbstractContextManager[None]:
    """Context manager in which `_ending_signals` raise KeyboardInterrupt."""
    return handled(signal.default_int_handler, *_ending_signals())


def _ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP, which comes when a terminal is closed.

    SIGHUP is left out if it is ignored, as by `nohup`.
    """
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up and signal.getsignal(hang_up) != signal.SIG_IGN:
        return [signal.SIGTERM, hang_up]
    return [signal.SIGTERM]


class StopRequest:
    """Remembers SIGTERM, SIGINT and SIGHUP until the training step has ended.

    A second signal interrupts at once. Outside the main thread, where Python
    allows no signal handlers, nothing changes.
    """

    def __init__(self):
        self.signal = None
        self._handlers = contextlib.ExitStack()

    def __enter__(self):
        self._handlers.enter_context(
            handled(self._receive, *_ending_signals(), signal.SIGINT)
        )
        return self

    def __exit__(self, *_):
        self._handlers.close()

    def _receive(self, number, frame):
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        _silence_closed()
        # `print` may not be entered twice. The reader of a pipe, as in `2>&1 |
        # tee log`, may have got the same signal and be gone.
        with contextlib.suppress(OSError):
            os.write(
                2,
                b"\nstopping after this step; press Ctrl-C again to stop at "
                b"once\n",
            )


def say(text: str) -> None:
    """Prints to the standard error, whose reader may have ended meanwhile."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _silence_closed() -> None:
    """Sends what is printed to the null device if the terminal was closed.

    Otherwise the next line of the progress would be an error, and end the run
    without a checkpoint.
    """
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError as error:
            if error.errno == errno.EIO:  # of a terminal that is gone
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), output)
