"""TensorFlow with oneDNN: nothing runs that its library gets wrong.

Exported models are held against the same list in test_without_python.py.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from onednn import FORCED, X86, dangerous, products

if pytest.importorskip("keras").backend.backend() != "tensorflow":
    pytest.skip("oneDNN is TensorFlow's", allow_module_level=True)
if platform.machine() not in X86:
    pytest.skip("TensorFlow has oneDNN for x86", allow_module_level=True)


HERE = Path(__file__).parents[1]


def printed(program):
    done = subprocess.run(
        [sys.executable, HERE / program],
        env={**os.environ, **FORCED, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_products_of_every_model():
    text = printed("onednn_training.py")
    # Of attention: scores, their gradients, contexts, in both directions.
    assert (16, 16, 16) in products(text)
    assert not dangerous(text)


def test_a_single_query_is_dangerous():
    """What the test above looks for is there where attention has one query."""
    program = (
        "import tensorflow as tf\n"
        "a = tf.Variable(tf.ones([2, 1, 4, 8]))\n"
        "b = tf.Variable(tf.ones([2, 8, 4, 8]))\n"
        "with tf.GradientTape() as tape:\n"
        "    y = tf.einsum('btad,bsad->bats', a, b)\n"
        "tape.gradient(y, [a, b])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **FORCED},
        capture_output=True,
        text=True,
    )
    assert dangerous(done.stdout)
