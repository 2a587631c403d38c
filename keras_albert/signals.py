"""Handles the signals by which a process is told to end."""

import contextlib
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


def sigterm_as_ctrl_c() -> contextlib.AbstractContextManager[None]:
    """Context manager in which SIGTERM raises KeyboardInterrupt."""
    return handled(signal.default_int_handler, signal.SIGTERM)
