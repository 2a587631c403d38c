"""Memory that a step frees is there for the next one, without new pages."""

import os
import platform
import sys

import numpy as np
import pytest
from commands import output_of

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc"
    ),
]

# How many pages the system gives for 80 MB that were freed just before: in
# this thread, in another one, and after TensorFlow has set its own limits.
SCRIPT = """
import resource, sys, threading
import numpy as np
if sys.argv[1] != "of user":
    import tensorflow as tf
from keras_albert.data.input_pipeline import batch_dataset, keep_freed_memory

if sys.argv[1] != "default":
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
    if sys.argv[1] != "default":
        list(batch_dataset(lambda: iter([1]), tf.TensorSpec(()), 1))
    else:
        spec = tf.TensorSpec(())
        list(tf.data.Dataset.from_generator(lambda: [1], output_signature=spec))

cases = allocate, in_thread, lambda: (make(), allocate())
for run in cases[: 2 if sys.argv[1] == "of user" else 3]:
    pages = []
    for _ in range(3):
        run()
    print(min(pages[1:]))
"""


def pages(mode, **environment):
    """The pages of each of the cases: without TensorFlow, of two."""
    inherited = {k: v for k, v in os.environ.items() if "MALLOC_" not in k}
    program = sys.executable, "-c", SCRIPT, mode
    said = output_of(*program, env=inherited | environment)
    return np.array([*map(int, said.split())])


def test_pages_are_not_asked_for_again():
    """They are without the function, and if the user has set the limits."""
    keeps, default = pages("keep"), pages("default")
    assert (4 * keeps < default).all(), (keeps, default)
    of_user = pages("of user", MALLOC_MMAP_THRESHOLD_="131072")
    assert (4 * keeps[:2] < of_user).all(), (keeps, of_user)
