"""Handles the signals by which a process is told to end."""

import contextlib
import os
import signal
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
            signal.signal(number, previous)


def signals_as_ctrl_c() -> contextlib.AbstractContextManager[None]:
    """Context manager in which signals to end raise KeyboardInterrupt.

    These are SIGTERM, and SIGHUP, which comes when a terminal is closed; not if
    it is ignored, as by `nohup`.
    """
    numbers = [signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up and signal.getsignal(hang_up) == signal.SIG_DFL:
        numbers.append(hang_up)
    return handled(signal.default_int_handler, *numbers)


class StopRequest:
    """Remembers SIGTERM and SIGINT until the training step has ended.

    A second signal interrupts at once. Outside the main thread, where Python
    allows no signal handlers, nothing changes.
    """

    def __init__(self):
        self.signal = None
        self._handlers = contextlib.ExitStack()

    def __enter__(self):
        self._handlers.enter_context(
            handled(self._receive, signal.SIGTERM, signal.SIGINT)
        )
        return self

    def __exit__(self, *_):
        self._handlers.close()

    def _receive(self, number, frame):
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        # `print` may not be entered twice. The reader of a pipe, as in `2>&1 |
        # tee log`, may have got the same signal and be gone.
        with contextlib.suppress(OSError):
            os.write(
                2,
                b"\nstopping after this step; press Ctrl-C again to stop at "
                b"once\n",
            )
