"""Thousands of valid, strange and wrong requests to an exported model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

if pytest.importorskip("keras").backend.backend() != "tensorflow":
    pytest.skip("graphs are traced by TensorFlow", allow_module_level=True)
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from served_models import random_predictor  # noqa: E402

from keras_albert.exports.saved_model.signatures import serving_module  # noqa: E402
from keras_albert.text.tokenizer import Tokenizer  # noqa: E402

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "load_saved_model.py"


@pytest.fixture(scope="module")
def folder(tiny_vocab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    predictor = random_predictor(Tokenizer(tiny_vocab), "pairs")
    module, signatures = serving_module(predictor)
    tf.saved_model.save(module, folder, signatures)
    return folder


@pytest.mark.proof
@pytest.mark.parametrize(
    ("runtime", "requests"), [("c", 10_000), ("tensorflow", 1_000)]
)
def test_load(folder, runtime, requests):
    """No wrong answer, no vague refusal, no memory lost."""
    if runtime == "c" and sys.platform != "linux":
        pytest.skip("made for the libraries of Linux")
    done = subprocess.run(
        [sys.executable, PROGRAM, folder, "--runtime", runtime]
        + ["--requests", str(requests)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["requests"] == requests and report["threads"] == 8
    assert report["failures"] == 0 and report["distinct"] > 200
    assert 0.05 * requests < report["refused"] < 0.5 * requests
