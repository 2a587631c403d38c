"""Redirects what one thread prints, and leaves other threads alone.

`contextlib.redirect_stdout` replaces `sys.stdout` for all threads. If two of
them do so at the same time, each may read what the other prints, and the stream
that stays behind in the end may be one that nobody reads.
"""

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

# Held while `sys.stdout` or `sys.stderr` is replaced.
_REPLACING = threading.Lock()


@contextlib.contextmanager
def redirected(
    stdout: TextIO | None = None, stderr: TextIO | None = None
) -> Iterator[None]:
    """Context manager that redirects what the calling thread prints.

    What threads that it starts print goes where it went before.

    Args:
        stdout: what receives the thread's standard output; None changes
            nothing.
        stderr: the same for the standard error.
    """
    with contextlib.ExitStack() as stack:
        for name, target in (("stdout", stdout), ("stderr", stderr)):
            if target is not None:
                stack.enter_context(_replaced(name, target))
        yield


def own_stream(name: str) -> TextIO | None:
    """The stream that `sys.stdout` or `sys.stderr` is for the calling thread.

    Args:
        name: "stdout" or "stderr".

    Returns:
        the stream; None if the process has none, as a daemon may.
    """
    stream = getattr(sys, name)
    return stream.own() if isinstance(stream, _ByThread) else stream


@contextlib.contextmanager
def _replaced(name: str, target: TextIO) -> Iterator[None]:
    with _REPLACING:
        stream = getattr(sys, name)
        if not isinstance(stream, _ByThread):
            stream = _ByThread(stream)
            setattr(sys, name, stream)
        stream.users += 1
    targets = stream.targets()
    targets.append(target)
    try:
        yield
    finally:
        targets.pop()
        with _REPLACING:
            stream.users -= 1
            # Something else may have replaced the stream meanwhile.
            if not stream.users and getattr(sys, name) is stream:
                setattr(sys, name, stream.original)


class _ByThread:
    """A stream that is another one in each thread that redirects it.

    In all other threads it is the original. It also works after the last
    redirection, since a logger may have kept it.
    """

    def __init__(self, original: TextIO | None):
        self.original = original
        self.users = 0  # redirections that have not ended
        self._thread = threading.local()

    def targets(self) -> list[TextIO]:
        """The redirections of the calling thread, the innermost one last."""
        return self._thread.__dict__.setdefault("targets", [])

    def own(self) -> TextIO | None:
        targets = self.targets()
        return targets[-1] if targets else self.original

    def write(self, text: str) -> int:
        stream = self.own()
        return len(text) if stream is None else stream.write(text)

    def flush(self) -> None:
        stream = self.own()
        if stream is not None:
            stream.flush()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of an object that is copied, for example
            raise AttributeError(name)
        stream = self.own()
        return getattr(io.StringIO() if stream is None else stream, name)
