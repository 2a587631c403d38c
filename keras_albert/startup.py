"""What a command does before its own work: open streams, load the backend."""

import contextlib
import gc
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator

from keras_albert.allocator import keep_freed_memory
from keras_albert.errors import AlbertError
from keras_albert.storage import DISK_ERRORS


def open_standard_streams() -> None:
    """Opens the null device for each of standard input, output and error.

    A daemon may have closed them. The next file that is opened would then be
    what libraries take for the standard error, and get their messages.
    """
    opened = 0
    while opened <= 2:
        opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        os.set_inheritable(opened, True)  # for worker processes, too
    os.close(opened)
    if sys.stderr is None:  # `print(..., file=None)` is the standard output
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False),
            errors="backslashreplace",
            line_buffering=True,
        )


def load_backend() -> None:
    """Imports Keras and TensorFlow without TensorFlow's start-up chatter."""
    keep_freed_memory()  # before threads begin, which get arenas of their own
    name = os.environ.get("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryFile() as chatter, contextlib.ExitStack() as stack:
        if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0":
            # It comes from C++, which does not use sys.stderr.
            stderr = os.dup(2)
            os.dup2(chatter.fileno(), 2)
            stack.callback(os.close, stderr)
            stack.callback(os.dup2, stderr, 2)
        stack.enter_context(_garbage_collector_off())
        try:
            import keras  # noqa: F401

            importlib.import_module("tensorflow")
        except Exception as error:  # protobuf raises TypeError, for example
            if (
                isinstance(error, MemoryError)
                or getattr(error, "errno", None) in DISK_ERRORS
            ):
                raise
            remedy = (
                "Set KERAS_BACKEND to tensorflow, jax or torch, and install "
                "that extra of keras-albert."
            )
            if "failed to map segment" in str(error) and _memory_is_limited():
                remedy = "Raise the limit of this process's memory (ulimit -v)."
            raise AlbertError(
                f"cannot load the Keras backend {name!r} and TensorFlow, which "
                f"feeds the data ({error}). {remedy}"
            ) from None


def _memory_is_limited() -> bool:
    """Whether `ulimit -v` limits the memory of this process."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return limit != resource.RLIM_INFINITY


@contextlib.contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """Switches Python's garbage collector off while a backend is imported.

    Almost everything that an import creates lives until the process ends, and
    to search it for garbage took a quarter of the time that a command needs to
    start. At the end of the block all objects that exist are exempted from
    later searches, too. Nothing is done if Keras is already imported, or if
    the caller has switched the collector off.
    """
    if not gc.isenabled() or "keras" in sys.modules:
        yield
        return
    gc.collect()  # so that no garbage of the caller is exempted
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
