"""Fixtures that make short runs quick."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_plots():
    """Runs in this process draw no curves, which takes longer than steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_albert.training.loop.draw_curves", lambda *_: None)
        yield


@pytest.fixture
def eagerly():
    """TensorFlow calls steps op by op: tracing takes longer than few steps."""
    tf = pytest.importorskip("tensorflow")
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
