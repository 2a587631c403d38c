"""What several files of this folder begin with."""

import functools
import importlib

import keras
import pytest

import keras_albert as ka


@pytest.fixture(scope="session")
def tokenizer(tiny_vocab):
    return ka.Tokenizer(tiny_vocab)


@pytest.fixture(scope="module")
def plain_graphs():
    """TensorFlow runs graphs as they are: to rewrite them takes long."""
    tf = pytest.importorskip("tensorflow")
    change = tf.config.optimizer.set_experimental_options
    change({"disable_meta_optimizer": True})
    yield
    change({"disable_meta_optimizer": False})


@pytest.fixture
def few_signatures(monkeypatch):
    """few_signatures(*names): of a SavedModel only these are traced.

    On other backends a worker traces them, and it traces all.
    """
    pytest.importorskip("tensorflow_text")

    def keep(*names):
        if keras.backend.backend() == "tensorflow":
            path = "keras_albert.exports.saved_model.signatures"
            module = importlib.import_module(path)
            only = functools.partial(module.serving_module, only={*names})
            monkeypatch.setattr(module, "serving_module", only)

    return keep
