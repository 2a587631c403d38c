"""Small models and batches that tests share.

Dimensions differ from one another, so that none can be taken for another.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops, tree

import keras_albert as ka
from keras_albert.checkpoints.transfer import variables, weights_of

CONFIG = ka.AlbertConfig(
    vocab_size=97,
    embedding_size=11,
    hidden_size=26,
    num_hidden_layers=5,
    num_attention_heads=13,
    intermediate_size=37,
    max_position_embeddings=23,
    initializer_range=0.3,
)
BATCH, LENGTH, PREDICTIONS = 3, 17, 7
# How to compile for a few steps: tracing and XLA take longer than these.
QUICK = {
    "run_eagerly": keras.backend.backend() == "tensorflow",
    "jit_compile": keras.backend.backend() == "jax",
}
# As wide as the vocabulary that the tests train, so that it takes texts.
TEXT_CONFIG = CONFIG.replace(
    vocab_size=163, num_hidden_layers=1, max_position_embeddings=61
)
# For what other packages and files hold: several layers, E != H.
EXCHANGED = ka.AlbertConfig(
    vocab_size=61,
    embedding_size=13,
    hidden_size=21,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=37,
    max_position_embeddings=19,
)


def marked(mark, *cases):
    """Cases of a parametrized test, each with the pytest mark of this name."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else [case]),
            marks=getattr(pytest.mark, mark),
        )
        for case in cases
    ]


def with_dropout(rate, config=CONFIG, **changes):
    """A config with dropout of both kinds."""
    changes["hidden_dropout_prob"] = rate
    return config.replace(attention_probs_dropout_prob=rate, **changes)


def numpy(tensors):
    """Arrays of a tensor, or of a structure of tensors."""
    return tree.map_structure(ops.convert_to_numpy, tensors)


def assert_close(found, expected, atol=1e-5, rtol=1e-5):
    """Asserts that tensors or arrays, or structures of them, nearly agree."""
    tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=rtol),
        numpy(found),
        numpy(expected),
    )


def hidden_states(backbone):
    """The outputs of all layers for `inputs`."""
    states = backbone(inputs(), return_hidden_states=True)["hidden_states"]
    return [numpy(state) for state in states]


def inputs():
    """Two full rows and one with five tokens of padding."""
    rng = np.random.default_rng(3)
    padding_mask = np.ones((BATCH, LENGTH), "int32")
    padding_mask[1, 12:] = 0
    token_ids = rng.integers(5, CONFIG.vocab_size, (BATCH, LENGTH))
    return {
        "token_ids": token_ids.astype("int32") * padding_mask,
        "segment_ids": rng.integers(0, 2, (BATCH, LENGTH)).astype("int32"),
        "padding_mask": padding_mask,
    }


def pretraining_batch():
    """(x, y, sample_weight) of AlbertForPretraining."""
    rng = np.random.default_rng(5)
    positions = np.stack(
        [rng.permutation(12)[:PREDICTIONS] for _ in range(BATCH)]
    )
    x = {**inputs(), "masked_positions": np.sort(positions).astype("int32")}
    y = {
        "mlm": rng.integers(5, CONFIG.vocab_size, (BATCH, PREDICTIONS)),
        "sop": rng.integers(0, 2, BATCH),
    }
    weight = {
        "mlm": rng.integers(0, 2, (BATCH, PREDICTIONS)).astype("float32"),
        "sop": np.ones(BATCH, "float32"),
    }
    return x, y, weight


def add_noise(model, seed=0):
    """Adds a random number to each weight, so that no bias stays zero."""
    rng = np.random.default_rng(seed)
    model.set_weights(
        [w + 0.1 * rng.normal(size=w.shape) for w in model.get_weights()]
    )
    return model


@contextlib.contextmanager
def op_by_op():
    """TensorFlow calls steps op by op: tracing takes longer than few steps."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def changes(model, step):
    """What a step returns, and what it subtracts from each trainable weight."""
    before = [numpy(v).copy() for v in model.trainable_variables]
    result = step()
    return result, [
        a - numpy(v)
        for a, v in zip(before, model.trainable_variables, strict=True)
    ]


def gradients(model, x, y, in_graph=False):
    """What one SGD step of rate 1 subtracts from each trainable weight.

    As `QUICK` says; `in_graph` traces on TensorFlow.
    """
    model.compile(
        keras.optimizers.SGD(1.0), loss={name: "mse" for name in y}, **QUICK
    )
    model.run_eagerly = model.run_eagerly and not in_graph
    return changes(model, lambda: model.train_on_batch(x, y))[1]


def randomized(model, scale=1.0):
    """Replaces all weights by random ones, in the order of names in files."""
    rng = np.random.default_rng(0)
    for variable in variables(model).values():
        variable.assign(rng.normal(scale=scale, size=variable.shape))
    return model


def run_on_another_backend(code, folder):
    """Runs a program in `folder` on a backend other than this one."""
    others = {"tensorflow": "torch", "torch": "jax", "jax": "tensorflow"}
    other = others[keras.backend.backend()]
    if importlib.util.find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        check=True,
        env={**os.environ, "KERAS_BACKEND": other},
        capture_output=True,
    )


def same_weights(a, b):
    a, b = weights_of(a), weights_of(b)
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


@contextlib.contextmanager
def signalled(number, step=None):
    """A signal arrives in a step of a run, or in its first validation."""
    from keras_albert.training import loop as fitting

    whole_class, method = (
        (fitting._StopEvaluation, "on_test_batch_end")
        if step is None
        else (fitting.ProgressBar, "update")
    )
    original = getattr(whole_class, method)

    def patched(self, position, *args, **kwargs):
        if position == (step or 0):
            signal.raise_signal(number)
        original(self, position, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_class, method, patched)
        yield
