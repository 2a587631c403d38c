"""What the training step is under TensorFlow's TPUStrategy."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import pytest

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="of TensorFlow alone"
)


def traced(*arguments):
    """In a process of its own, which has its own devices."""
    script = Path(__file__).with_name("trace_tpu_strategy.py")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "arguments",
    [[], ["0.1", "2", "3"]],
    ids=["plain", "dropout, accumulated, several steps"],
)
def test_each_gradient_is_summed_across_replicas(arguments):
    """Once a step, and the normalizers of the two losses in each part."""
    found = traced(*arguments)
    operations = found["operations"]
    assert found["strategy"] == "TPUStrategyV2"
    assert found["replicas"] == 2
    assert found["variables"] == "TPUDistributedVariable"
    programs = 2 if arguments else 1  # a part; and the step of all parts
    assert operations["TPUReplicateMetadata"] == programs
    assert operations["TPUCompilationResult"] == programs
    assert operations["CrossReplicaSum"] == found["trainable"] + 2
