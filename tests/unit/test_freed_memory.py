"""Memory that a step frees is there for the next one, without new pages."""

import os
import platform
import sys

import numpy as np
import pytest
from commands import output_of

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.proof,  # a process imports TensorFlow again
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc"
    ),
]

# How many pages the system gives for 80 MB that were freed just before: in
# this thread, in another one, and after TensorFlow has set its own limits.
# A process for each mode, of which the first one imports TensorFlow for all.
SCRIPT = """
import os, resource, sys, threading
import numpy as np
if sys.argv[1] != "of user":
    import tensorflow as tf
from keras_albert.allocator import keep_freed_memory
from keras_albert.data.input_pipeline import batch_dataset

mode, *others = sys.argv[1:]
for other in others:
    pid = os.fork()
    if not pid:
        mode = other
        break
    assert os.waitpid(pid, 0)[1] == 0
if mode != "default":
    keep_freed_memory()

def allocate():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(10_000_000).fill(1)
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def in_thread():
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()

def make():
    if mode != "default":
        list(batch_dataset(lambda: iter([1]), tf.TensorSpec(()), 1))
    else:
        spec = tf.TensorSpec(())
        list(tf.data.Dataset.from_generator(lambda: [1], output_signature=spec))

cases = allocate, in_thread, lambda: (make(), allocate())
counts = []
for run in cases[: 2 if mode == "of user" else 3]:
    pages = []
    for _ in range(3):
        run()
    counts.append(min(pages[1:]))
print(mode.replace(" ", "_"), *counts, flush=True)
"""


def pages(*modes, **environment):
    """The pages of each of the cases, by mode: without TensorFlow, of two."""
    inherited = {k: v for k, v in os.environ.items() if "MALLOC_" not in k}
    program = sys.executable, "-c", SCRIPT, *modes
    said = output_of(*program, env=inherited | environment)
    rows = [line.split() for line in said.splitlines()]
    return {mode: np.array([*map(int, counts)]) for mode, *counts in rows}


def test_pages_are_not_asked_for_again():
    """They are without the function, and if the user has set the limits."""
    found = pages("keep", "default")
    keeps, default = found["keep"], found["default"]
    assert (4 * keeps < default).all(), (keeps, default)
    user_sets = {"MALLOC_MMAP_THRESHOLD_": "131072"}
    of_user = pages("of user", **user_sets)["of_user"]
    assert (4 * keeps[:2] < of_user).all(), (keeps, of_user)
