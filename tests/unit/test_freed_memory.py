"""Memory that a step frees is there for the next one, without new pages."""

import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's"),
]

# How many pages the system gives for 80 MB that were freed just before: in
# this thread, in another one, and after TensorFlow has set its own limits.
SCRIPT = """
import resource, sys, threading
import numpy as np
import tensorflow as tf
from keras_albert.data.input_pipeline import batch_dataset, keep_freed_memory

if sys.argv[1] == "keep":
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
    if sys.argv[1] == "keep":
        list(batch_dataset(lambda: iter([1]), tf.TensorSpec(()), 1))
    else:
        spec = tf.TensorSpec(())
        list(tf.data.Dataset.from_generator(lambda: [1], output_signature=spec))

for run in (allocate, in_thread, lambda: (make(), allocate())):
    pages = []
    for _ in range(3):
        run()
    print(min(pages[1:]))
"""


@pytest.mark.parametrize(
    ("mode", "fewest", "most"), [("keep", 0, 20), ("default", 100, 10**9)]
)
def test_pages_are_not_asked_for_again(mode, fewest, most):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for pages in done.stdout.split():
        assert fewest <= int(pages) <= most, done.stdout
