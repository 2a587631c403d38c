"""What the training step is under TensorFlow's TPUStrategy, without a TPU."""

import json
import os
import sys
from pathlib import Path

import keras
import pytest
from commands import output_of

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="of TensorFlow alone"
)
# Python of an environment of tpu/requirements-tf.txt.
LIMIT = 300  # seconds, after which a process counts as hanging
TPU_PYTHON = os.environ.get("KERAS_ALBERT_TPU_PYTHON")
needs_tpu_tensorflow = pytest.mark.skipif(
    TPU_PYTHON is None,
    reason="needs TensorFlow for TPUs: make test-tpu-tensorflow",
)
# Of one row of `trace_tpu_strategy.py`: 17 tokens of 11 and 26 numbers, three
# layers, three predictions of 97 pieces, and the order of two sentences.
PRODUCTS = (
    17 * 11 * 26
    + 3 * 17 * (4 * 26 * 26 + 2 * 26 * 37 + 2 * 17 * 26)
    + 3 * 11 * 26
    + 26 * 26
)
LOGITS = 3 * 11 * 97 + 26 * 2  # always in float32
TIMES = 6 * 2 * 3  # rows; multiplication and addition; forward, backward


def printed(python, script, *arguments):
    """Runs a script in a process with devices of its own; returns its JSON."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TPU_SKIP_MDS_QUERY": "1",  # asks no metadata server
    }
    # JAX leaves the place of its own libtpu there.
    environment.pop("TPU_LIBRARY_PATH", None)
    script = Path(__file__).with_name(script)
    options = {"env": environment, "timeout": LIMIT}
    said = output_of(python, script, *arguments, **options)
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize(
    "python",
    [sys.executable, pytest.param(TPU_PYTHON, marks=needs_tpu_tensorflow)],
    ids=["this TensorFlow", "TensorFlow for TPUs"],
)
@pytest.mark.parametrize(
    "arguments",
    [[], ["0.1", "2", "3"]],
    ids=["plain", "dropout, accumulated, several steps"],
)
@pytest.mark.proof
def test_each_gradient_is_summed_across_replicas(arguments, python):
    """So are, in each part of a batch, the normalizers of the two losses."""
    found = printed(python, "trace_tpu_strategy.py", *arguments)
    operations = found["operations"]
    assert (found["strategy"], found["replicas"]) == ("TPUStrategyV2", 2)
    assert found["variables"] == "TPUDistributedVariable"
    programs = 2 if arguments else 1  # a part; and the step of all parts
    assert operations["TPUReplicateMetadata"] == programs
    assert operations["TPUCompilationResult"] == programs
    assert operations["CrossReplicaSum"] == found["trainable"] + 2


@needs_tpu_tensorflow
@pytest.mark.parametrize(
    "arguments",
    [[], ["0.1", "mixed_bfloat16"]],
    ids=["plain", "dropout, bfloat16"],
)
def test_each_operation_has_a_kernel_for_tpus(arguments):
    """Forward and backward pass, LAMB and metrics are one program."""
    found = printed(TPU_PYTHON, "lower_for_tpu.py", *arguments)
    assert found["parameters"] == found["arguments"]
    assert found["results"] == found["variables"]
    assert found["calls_to_the_host"] == []
    flops = {"f32": TIMES * (PRODUCTS + LOGITS)}
    if arguments:
        flops = {"bf16": TIMES * PRODUCTS, "f32": TIMES * LOGITS}
    assert found["flops"] == flops
