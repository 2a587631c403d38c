"""GELU, LayerNorm and cross-entropy in few passes over memory, for CPUs.

TensorFlow computes a GELU and its gradient with some 25 operations, of which
each reads and writes all activations. XLA makes a single loop of them. Only
these functions are compiled by XLA: its matrix products are slower than
oneDNN's on CPUs.

Import this module with the TensorFlow backend only.
"""

import functools
import math
import platform
import sys

import tensorflow as tf

from keras_albert.modeling.config import LAYER_NORM_EPSILON

# A smaller hidden size gains less than it costs to start compiled code.
LEAST_WIDTH = 128
# Numbers of rows that are compiled: two for each power of 2.
SIZES = sorted(rows << n for n in range(16) for rows in (512, 768))
# gelu(x) = x / 2 (1 + tanh(A x + B x^3))
A = math.sqrt(2 / math.pi)
B = 0.044715 * A

_compiled = functools.partial(
    tf.function, jit_compile=True, autograph=False, reduce_retracing=True
)


def is_faster(rows: tf.Tensor) -> bool:
    """Whether training should use this module for a tensor of shape [..., H].

    H is the hidden size, or the number of classes of a cross-entropy.
    """
    return (
        (rows.shape[-1] or 0) >= LEAST_WIDTH  # None if it is not known
        # XLA was tried on no other system.
        and (sys.platform, platform.machine()) == ("linux", "x86_64")
        and not _accelerators()
    )


def _accelerators() -> bool:
    # TPUs of another machine are logical devices only.
    devices = tf.config.list_physical_devices()
    devices += tf.config.list_logical_devices()
    return any(each.device_type != "CPU" for each in devices)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tf.Tensor:
    """The tanh form of GELU of [N, F], computed in float32 or float64."""

    def gradient(upstream):
        return _unpadded(_gelu_gradient(*_padded(x, upstream)), x)

    return _unpadded(_gelu(*_padded(x)), x), gradient


@tf.custom_gradient
def add_and_normalize(x, residual, gamma, beta) -> tf.Tensor:
    """LayerNorm of x + residual, [N, H], over the last axis."""

    def gradient(upstream):
        rows = _padded(x, residual, upstream)
        of_x, *others = _normalize_gradient(*rows, gamma, beta)
        of_x = _unpadded(of_x, x)
        return of_x, of_x, *others

    rows = _padded(x, residual)
    return _unpadded(_normalize(*rows, gamma, beta), x), gradient


@tf.custom_gradient
def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """-log(softmax(logits)) at the labels: int [N], float [N, C] -> [N].

    Raises tf.errors.InvalidArgumentError for a label that is not from 0 to
    C - 1, as TensorFlow's own operation.
    """
    labels = tf.cast(labels, tf.int32)[:, tf.newaxis]
    count = logits.shape[1]
    message = f"a label is not from 0 to {count - 1}"
    checks = [
        tf.debugging.assert_non_negative(labels, message),
        tf.debugging.assert_less(labels, count, message),
    ]
    with tf.control_dependencies([each for each in checks if each is not None]):
        labels = tf.identity(labels)
    rows = _padded(labels, logits)
    losses, log_sums = (_unpadded(x, labels) for x in _cross_entropy(*rows))

    def gradient(upstream):
        upstream = upstream[:, tf.newaxis]
        rows = _padded(labels, logits, log_sums, upstream)
        return None, _unpadded(_cross_entropy_gradient(*rows), logits)

    return losses[:, 0], gradient


def _padded(*tensors):
    """Tensors [N, ...] with rows of zeros added, so that N is one of `SIZES`.

    Otherwise XLA would compile anew for each length of a batch. A size that is
    known when the step is traced is the only one, and stays.
    """
    if tensors[0].shape[0] is not None:
        return tensors
    count = tf.shape(tensors[0])[0]
    size = tf.gather(SIZES, tf.searchsorted(SIZES, [count])[0])
    return [tf.pad(each, [[0, size - count], [0, 0]]) for each in tensors]


def _unpadded(y, x):
    """The first rows of `y`, as many as `x` has."""
    return tf.ensure_shape(y[: tf.shape(x)[0]], x.shape)


@_compiled
def _gelu(x):
    wide = _wide(x)
    tanh = tf.tanh(wide * (A + B * wide * wide))
    return tf.cast(wide * (0.5 + 0.5 * tanh), x.dtype)


@_compiled
def _gelu_gradient(x, upstream):
    wide = _wide(x)
    square = wide * wide
    tanh = tf.tanh(wide * (A + B * square))
    slope = wide * (1 - tanh * tanh) * (A + 3 * B * square)
    slope = 0.5 + 0.5 * tanh + 0.5 * slope
    return tf.cast(_wide(upstream) * slope, x.dtype)


@_compiled
def _normalize(x, residual, gamma, beta):
    unit, _ = _normalized(_wide(x) + _wide(residual))
    return tf.cast(unit * _wide(gamma) + _wide(beta), x.dtype)


@_compiled
def _normalize_gradient(x, residual, upstream, gamma, beta):
    unit, inverse = _normalized(_wide(x) + _wide(residual))
    upstream = _wide(upstream)
    slope = upstream * _wide(gamma)
    # The part of the gradient along the mean and along the vector itself is
    # removed: neither changes the result.
    of_x = slope - _mean(slope) - unit * _mean(slope * unit)
    return (
        tf.cast(inverse * of_x, x.dtype),
        tf.cast(tf.reduce_sum(upstream * unit, axis=0), gamma.dtype),
        tf.cast(tf.reduce_sum(upstream, axis=0), beta.dtype),
    )


@_compiled
def _cross_entropy(labels, logits):
    """The losses, and the logarithms of the sums of exp(logits): [N, 1]."""
    log_sums = tf.reduce_logsumexp(logits, axis=1, keepdims=True)
    # XLA sums the one logit of a row in the same loop, unlike a gather.
    chosen = tf.where(_is_label(labels, logits), logits, 0)
    return log_sums - tf.reduce_sum(chosen, axis=1, keepdims=True), log_sums


@_compiled
def _cross_entropy_gradient(labels, logits, log_sums, upstream):
    probabilities = tf.exp(logits - log_sums)
    expected = tf.cast(_is_label(labels, logits), logits.dtype)
    return upstream * (probabilities - expected)


def _is_label(labels, logits):
    # `reduce_retracing` makes the number of columns of the traced shape unknown
    # after calls with different ones.
    return tf.equal(tf.range(tf.shape(logits)[1]), labels)


def _normalized(x):
    """Vectors of mean 0 and variance 1, and 1 / the standard deviation."""
    centered = x - _mean(x)
    variance = _mean(centered * centered)
    inverse = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)
    return centered * inverse, inverse


def _mean(x):
    return tf.reduce_mean(x, axis=-1, keepdims=True)


def _wide(x):
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
