"""TensorFlow with oneDNN: nothing runs that its library gets wrong.

Exported models are held against the same list in test_without_python.py.
"""

import os
import platform
import sys
from pathlib import Path

import pytest
from commands import output_of
from onednn import FORCED, X86, dangerous, products

if pytest.importorskip("keras").backend.backend() != "tensorflow":
    pytest.skip("oneDNN is TensorFlow's", allow_module_level=True)
if platform.machine() not in X86:
    pytest.skip("TensorFlow has oneDNN for x86", allow_module_level=True)


PROGRAM = Path(__file__).parents[1] / "onednn_training.py"


@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["--graphs"], marks=pytest.mark.proof)]
)
def test_products_of_every_model(arguments):
    """No product is dangerous; those of an attention of one query are."""
    env = {**os.environ, **FORCED, "KERAS_BACKEND": "tensorflow"}
    said = output_of(sys.executable, PROGRAM, *arguments, env=env)
    every_model, single_query = said.split("\none query\n")
    # Of attention: scores, their gradients, contexts, in both directions.
    assert (16, 16, 16) in products(every_model)
    assert not dangerous(every_model)
    assert dangerous(single_query)
