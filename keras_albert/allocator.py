"""How the C library keeps memory that a process frees."""

import ctypes
import os
import sys

# Parameters of glibc's mallopt, see <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_UNLIMITED = 2**31 - 1  # bytes
_HIGHEST_BEFORE = 32 * 2**20  # bytes, in older releases of glibc

_is_kept = False  # whether `keep_freed_memory` was called


def keep_freed_memory() -> None:
    """Lets the process keep memory that it frees, on Linux with glibc.

    Each training step on a CPU allocates what the step before freed. By default
    glibc returns large blocks to the system, which has to clear their pages
    before it gives them out again: up to half of the time of a step. XLA
    allocates in threads, whose blocks above 64 MB are returned always, unless
    all threads share the main arena. Limits that the user has set in the
    environment, such as MALLOC_ARENA_MAX, are left alone.
    """
    global _is_kept
    _is_kept = True
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    is_glibc = hasattr(libc, "gnu_get_libc_version")
    if not is_glibc or any(name.startswith("MALLOC_") for name in os.environ):
        return
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_TRIM_THRESHOLD, _UNLIMITED)
    # Older releases of glibc refuse more than 32 MB and return 0. Any call of
    # mallopt ends their own adaptation, so that they need the highest.
    if not libc.mallopt(_M_MMAP_THRESHOLD, _UNLIMITED):
        libc.mallopt(_M_MMAP_THRESHOLD, _HIGHEST_BEFORE)


def keep_freed_memory_again() -> None:
    """Sets the limits of `keep_freed_memory` again, if it has been called.

    TensorFlow sets its own limits when a process first iterates over a dataset
    of a Python generator. In a process that has not called
    `keep_freed_memory`, such as a user's own program, nothing is changed.
    """
    if _is_kept:
        keep_freed_memory()
