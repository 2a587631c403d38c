"""What XLA computes in training on CPUs is what TensorFlow computes."""

import sys
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from keras import ops
from small import CONFIG, add_noise, changes

import keras_albert as ka

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow" or sys.platform != "linux",
    reason="only TensorFlow on Linux computes them in this way",
)
CONFIG = CONFIG.replace(num_hidden_layers=2, hidden_act="gelu")
ids = np.random.default_rng(0).integers(5, CONFIG.vocab_size, (3, 7))


@pytest.fixture
def fused():
    from keras_albert.modeling import fused_tf

    return fused_tf


def test_values_and_gradients(fused):
    """In float64, beside Keras's operations and numerical gradients."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, residual = (tf.constant(rng.normal(size=(4, 6)) * 3) for _ in "xr")
    gamma, beta = (tf.constant(rng.normal(size=6)) for _ in "gb")
    np.testing.assert_allclose(
        fused.gelu(x), ops.gelu(x, approximate=True), 1e-6, 1e-12
    )
    norm = fused.add_and_normalize(x, residual, gamma, beta)
    expected = ops.layer_normalization(x + residual, gamma, beta, -1, 1e-12)
    np.testing.assert_allclose(norm, expected, 1e-10)
    for function, given in (
        (fused.gelu, [x]),
        (fused.add_and_normalize, [x, residual, gamma, beta]),
    ):
        found, numerical = tf.test.compute_gradient(function, given)
        for one, other in zip(found, numerical, strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_cross_entropy(fused):
    """Values and gradients for logits of any size, in a batch of any length."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 9))
    logits[1] *= 1e3
    logits[2, 3], logits[3] = 1e30, 7.0
    logits = tf.constant(logits, "float32")
    labels, upstream = np.int64([0, 8, 3, 4, 2]), tf.range(1.0, 6.0)

    def step(function, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = function(labels, logits)
            total = tf.reduce_sum(upstream * losses)
        return losses, tape.gradient(total, logits)

    plain = tf.nn.sparse_softmax_cross_entropy_with_logits
    expected = step(plain, logits)
    any_length = tf.function(
        lambda x: step(fused.cross_entropy, x),
        input_signature=[tf.TensorSpec((None, 9))],
    )
    for found in step(fused.cross_entropy, logits), any_length(logits):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, 1e-6, 1e-6)
    wide = tf.constant(rng.normal(size=(5, 200)), "float32")  # in one process
    for logits in wide, wide[:, :150]:
        found = fused.cross_entropy(tf.constant(labels), logits)
        np.testing.assert_allclose(found, plain(labels, logits), 1e-6)
    for label in (-1, 9):
        with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 8"):
            fused.cross_entropy(tf.constant([label]), logits[:1, :9])


def trained(**options):
    """The loss and the gradients of a step."""
    keras.utils.set_random_seed(0)
    model = add_noise(
        ka.AlbertForTextEmbedding(ka.AlbertBackbone(CONFIG, **options))
    )
    model.compile(keras.optimizers.SGD(1.0), "mse")
    batch = {"token_ids": ids}, np.ones((3, CONFIG.hidden_size))
    return changes(model, lambda: model.train_on_batch(*batch))


@pytest.mark.parametrize("options", [{}, {"loop": "scan"}, {"remat": True}])
def test_a_step_is_the_same(fused, monkeypatch, options):
    gelu = Mock(wraps=fused.gelu)
    monkeypatch.setattr(fused, "gelu", gelu)
    loss, gradients = trained(**options)
    assert not gelu.called  # the model is too small
    monkeypatch.setattr(fused, "LEAST_WIDTH", 8)
    other, others = trained(**options)
    assert gelu.called
    np.testing.assert_allclose(other, loss, 1e-6)
    for one, other in zip(gradients, others, strict=True):
        scale = max(np.abs(one).max(), 1e-3)
        np.testing.assert_allclose(other / scale, one / scale, 0, 5e-5)


def test_few_of_many_lengths_are_compiled(fused):
    """Rows are padded; neither values nor gradients show it."""
    import tensorflow as tf

    def step(x, gamma):
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            y = fused.add_and_normalize(x, x * x, gamma, gamma)
            loss = tf.reduce_sum(fused.gelu(y) ** 2)
        return [tf.shape(fused._padded(x)[0])[0], loss] + tape.gradient(
            loss, [x, gamma]
        )

    gamma = tf.linspace(0.5, 2.0, 6)
    of_any_length = tf.function(
        step, input_signature=[tf.TensorSpec((None, 6)), tf.TensorSpec(6)]
    )
    rng = np.random.default_rng(0)
    for count, size in ((1, 512), (512, 512), (513, 768), (769, 1024)):
        x = tf.constant(rng.normal(size=(count, 6)), "float32")
        own, *expected = step(x, gamma)
        padded, *found = of_any_length(x, gamma)
        assert (own, padded) == (count, size)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, 1e-4, 1e-4)


def test_half_precision_is_as_exact(fused, monkeypatch):
    _, exact = trained()
    _, plain = trained(dtype="mixed_bfloat16")
    monkeypatch.setattr(fused, "LEAST_WIDTH", 8)
    _, found = trained(dtype="mixed_bfloat16")

    def error(gradients):
        pairs = zip(gradients, exact, strict=True)
        return np.sqrt(sum(np.square(a - b).sum() for a, b in pairs))

    assert 0 < error(found) < 1.3 * error(plain)
