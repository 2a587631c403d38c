"""GELU and LayerNorm in one pass over memory each, to train on a CPU.

TensorFlow computes a GELU and its gradient with some 25 operations, of which
each reads and writes all activations. XLA makes a single loop of them. Only
these functions are compiled by XLA: its matrix products are slower than
oneDNN's on CPUs.

Import this module with the TensorFlow backend only.
"""

import functools
import math
import sys

import tensorflow as tf

from keras_albert.modeling.config import LAYER_NORM_EPSILON

# A smaller hidden size gains less than it costs to start compiled code.
LEAST_WIDTH = 128
# gelu(x) = x / 2 (1 + tanh(A x + B x^3))
A = math.sqrt(2 / math.pi)
B = 0.044715 * A

_compiled = functools.partial(
    tf.function, jit_compile=True, autograph=False, reduce_retracing=True
)


def is_faster(x: tf.Tensor) -> bool:
    """Whether training should use the functions of this module for `x`."""
    return (
        x.shape[-1] >= LEAST_WIDTH
        and sys.platform == "linux"  # XLA was tried on no other system
        and not _accelerators()
    )


def _accelerators() -> bool:
    # TPUs of another machine are logical devices only.
    devices = tf.config.list_physical_devices()
    devices += tf.config.list_logical_devices()
    return any(each.device_type != "CPU" for each in devices)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tf.Tensor:
    """The tanh form of GELU, computed in float32 or float64."""
    return _gelu(x), lambda upstream: _gelu_gradient(x, upstream)


@tf.custom_gradient
def add_and_normalize(x, residual, gamma, beta) -> tf.Tensor:
    """LayerNorm of x + residual, [N, H], over the last axis."""
    inputs = x, residual, gamma, beta

    def gradient(upstream):
        x, gamma, beta = _normalize_gradient(*inputs, upstream)
        return x, x, gamma, beta

    return _normalize(*inputs), gradient


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
def _normalize_gradient(x, residual, gamma, beta, upstream):
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
