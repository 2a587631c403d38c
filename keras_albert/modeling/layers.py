"""The layers of the encoder: factorized embedding, attention, feed-forward.

A transformer block has an attention half and a feed-forward half. Each half
ends with its own residual connection and LayerNorm (post-LN), so that the
layers of a model can share one half without the other.

The Keras layers of the halves only hold weights; the computation is in
functions of tensors. There are two reasons. Weights that many layers share
are read (concatenated, and cast to the compute dtype) only once per call of
the model. And a loop over layers or a rematerialization needs a pure function.

Letters: B batch, S sequence length, E embedding size, H hidden size, A heads,
D = H / A, F feed-forward width.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from keras_albert.modeling.base import ConfiguredLayer, feeding
from keras_albert.modeling.config import LAYER_NORM_EPSILON, AlbertConfig
from keras_albert.private_apis import DrawnSeed, adapted_kernel


def initializer(config: AlbertConfig) -> keras.initializers.Initializer:
    """A new truncated normal initializer, as every kernel uses."""
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def layer_norm(name: str, dtype=None) -> layers.LayerNormalization:
    """LayerNorm over the last axis with ALBERT's epsilon."""
    return layers.LayerNormalization(
        epsilon=LAYER_NORM_EPSILON, dtype=dtype, name=name
    )


# Added to the scores of padded keys (reference modeling.py L818-828).
MASKED_SCORE = -10000.0
_CHECKED = (np.ndarray, keras.KerasTensor)


def _integers(ids):
    """Casts float tensors to int32; returns other ids unchanged.

    `keras.Input` has the dtype float32 by default, and Keras builds a
    subclassed model that it loads with float32 tensors. Float arrays are a
    user's mistake, which `check_inputs` refuses.
    """
    is_tensor = ops.is_tensor(ids) or isinstance(ids, keras.KerasTensor)
    if is_tensor and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(ids.dtype)
    ):
        return ops.cast(ids, "int32")
    return ids


@keras.saving.register_keras_serializable("keras_albert")
class FactorizedEmbedding(ConfiguredLayer):
    """Word + segment + position, LayerNorm, dropout, projection E -> H.

    The projection is absent when E == H (reference modeling.py L970-1014),
    unless the config says `project_equal_sizes`. The output has no Keras mask:
    give the next layer its `padding_mask`.

    Args:
        config: the architecture; the layers' sizes come from it.

    Call arguments:
        token_ids: int [B, S].
        segment_ids: int [B, S], 0 and 1 for two texts; zeros when absent.
        position_ids: int [B, S]; 0 to S - 1 when absent.
        training: whether to apply dropout.

    Returns:
        float [B, S, H].

    Raises:
        AlbertError: a NumPy array or symbolic input has another shape than
            [B, S], or more than `max_position_embeddings` tokens; or a NumPy
            array is not integer or has an id out of range.

    Source: Paper 3.1.
    """

    def __init__(self, config: AlbertConfig, **kwargs: Any):
        super().__init__(config, **kwargs)

        def table(kind, size, name, **kwargs):
            return kind(
                size,
                config.embedding_size,
                embeddings_initializer=initializer(config),
                dtype=self.dtype_policy,
                name=name,
                **kwargs,
            )

        # Reversible, since the masked-LM decoder uses the same table.
        self.word = table(
            layers.ReversibleEmbedding,
            config.vocab_size,
            "word_embeddings",
            reverse_dtype="float32",
        )
        self.segment = table(
            layers.Embedding, config.type_vocab_size, "token_type_embeddings"
        )
        self.position = table(
            layers.Embedding,
            config.max_position_embeddings,
            "position_embeddings",
        )
        self.layer_norm = layer_norm("layer_norm", self.dtype_policy)
        self.dropout = layers.Dropout(
            config.hidden_dropout_prob, dtype=self.dtype_policy
        )
        self.projection = None
        if config.has_projection:
            self.projection = layers.Dense(
                config.hidden_size,
                kernel_initializer=initializer(config),
                dtype=self.dtype_policy,
                name="projection",
            )

    def __call__(
        self,
        token_ids: Any,
        segment_ids: Any = None,
        position_ids: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Checks the ids, then calls the layer."""
        # Not in `call`, to whose errors Keras adds many lines.
        given = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "position_ids": position_ids,
        }
        given = {k: _integers(x) for k, x in given.items() if x is not None}
        # No other tensors: an unknown size may be a placeholder in a trace.
        if all(isinstance(ids, _CHECKED) for ids in given.values()):
            feeding().check_inputs(self.config, given, takes_packed=True)
        return super().__call__(**given, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        for table in (self.word, self.segment, self.position):
            table.build((None, None))
        vectors = (None, None, self.config.embedding_size)
        self.layer_norm.build(vectors)
        if self.projection is not None:
            self.projection.build(vectors)
        self.built = True

    def call(
        self,
        token_ids: Any,
        segment_ids: Any = None,
        position_ids: Any = None,
        training: bool | None = None,
    ) -> Any:
        if segment_ids is None:
            segment_ids = ops.zeros_like(token_ids)
        if position_ids is None:
            # A cumulative sum gives 0, 1, 2 ... A slice of the table would be
            # simpler, but slices of unknown length break several exporters.
            ones = ops.ones_like(token_ids, "int32")
            position_ids = ops.cumsum(ones, axis=1) - 1
        x = self.word(token_ids)
        x = x + self.segment(segment_ids)
        x = x + self.position(position_ids)
        x = self.dropout(self.layer_norm(x), training=training)  # [B, S, E]
        return x if self.projection is None else self.projection(x)

    def compute_output_shape(
        self, token_ids_shape: Any
    ) -> tuple[int | None, ...]:
        return (*token_ids_shape, self.config.hidden_size)


# The reference's gelu is the tanh form under both names (modeling.py L299).
ACTIVATIONS = {
    "gelu": lambda x: ops.gelu(x, approximate=True),
    "gelu_new": lambda x: ops.gelu(x, approximate=True),
    "gelu_erf": lambda x: ops.gelu(x, approximate=False),
    "relu": ops.relu,
}
# A block has three dropouts. Their seeds are in this order: attention
# probabilities, attention output, feed-forward output.
DROPOUTS = 3


def attention(config: AlbertConfig, weights, x, bias, seeds=None, fused=True):
    """Multi-head self-attention, without its output projection.

    Args:
        config: the architecture.
        weights: the result of `AttentionHalf.tensors`, with relaxed sharing
            joined with that of `AttentionDelta.tensors`.
        x: float [B, S, H].
        bias: float [B, 1, 1, S] or [B, 1, S, S], added to the scores.
        seeds: int [DROPOUTS, 2]; None for no dropout.
        fused: use the backend's fused attention kernel if possible.

    Returns the context vectors of all heads side by side, float [B, S, H]; and
    the probabilities [B, A, S, S], None if fused.
    """
    query, key, value = (
        _split_heads(each, x, config.num_attention_heads)  # [B, S, A, D]
        for each in _query_key_value(weights, _flat(x))
    )
    rate = config.attention_probs_dropout_prob
    if fused and _has_kernel(query.dtype) and (seeds is None or not rate):
        probs = None
        # Flash attention is off: Keras's flash kernel on torch does not accept
        # a bias, and the one of JAX on TPUs silently ignores it.
        context = ops.dot_product_attention(
            query, key, value, bias=bias, flash_attention=False
        )
    else:
        probs = _attention_probs(query, key, bias)  # [B, A, S, S]
        dropped = dropout(probs, rate, _seed(seeds, 0))
        context = ops.einsum("bats,bsad->btad", dropped, value)
    return ops.reshape(context, ops.shape(x)), probs


def attention_output(
    config: AlbertConfig, weights, x, context, seeds=None, training=False
):
    """Output projection of attention, residual, LayerNorm: [B, T, H].

    `x` and `context`, both [B, T, H], are the input and the result of
    `attention`, at all positions or at some of them; `training` says whether
    this is a training step. The other arguments are those of `attention`.
    """
    tokens = _flat(x)
    fused_ops = fused_operations(tokens, training)
    output = linear(weights["output"], _flat(context))
    output = dropout(output, config.hidden_dropout_prob, _seed(seeds, 1))
    output = _normalized_sum(weights["layer_norm"], tokens, output, fused_ops)
    return ops.reshape(output, ops.shape(x))


def feed_forward(config: AlbertConfig, weights, x, seeds=None, training=False):
    """Feed-forward network (H -> F -> H), residual, LayerNorm: [B, T, H]."""
    tokens = _flat(x)
    fused_ops = fused_operations(tokens, training)
    inner = _intermediate(config, weights["intermediate"], tokens, fused_ops)
    output = linear(weights["output"], inner)
    output = dropout(output, config.hidden_dropout_prob, _seed(seeds, 2))
    output = _normalized_sum(weights["layer_norm"], tokens, output, fused_ops)
    return ops.reshape(output, ops.shape(x))


def _flat(x):
    """All tokens of a batch as rows of one matrix: [B S, H].

    TensorFlow joins a product of matrices with the bias and GELU that follow
    it. It cannot join those of [B, S, H], which it also has to reshape. For JAX
    and PyTorch both forms are the same computation.
    """
    return ops.reshape(x, (-1, x.shape[-1]))


def linear(weights, x):
    """x W + b, plus the layer's own low-rank term with relaxed sharing."""
    if callable(weights):  # a quantized Keras layer, which computes in int8
        return weights(x)
    kernel, bias = weights["kernel"], weights["bias"]
    products = _products_of_torch()
    if products:
        y = products.linear(x, kernel, bias)
    else:
        y = ops.add(ops.matmul(x, kernel), bias)
    return y + _low_rank(weights["delta"], x) if "delta" in weights else y


def _products_of_torch():
    """Returns the module `linear_torch` with the PyTorch backend, else None."""
    if keras.backend.backend() != "torch":
        return None
    from keras_albert.modeling import linear_torch

    return linear_torch


def fused_operations(rows, training: bool):
    """Returns the module `fused_tf` if it is faster for this step, else None.

    It has GELU, LayerNorm and cross-entropy, compiled by XLA, for training on a
    CPU with TensorFlow. `rows` is one of their inputs.
    """
    if not training or keras.backend.backend() != "tensorflow":
        return None
    from keras_albert.modeling import fused_tf

    return fused_tf if fused_tf.is_faster(rows) else None


def _intermediate(config: AlbertConfig, weights, x, fused_ops):
    """The first product of the feed-forward network, activated: [B S, F]."""
    name = config.hidden_act
    # Neither quantized nor with relaxed sharing, which adds a term before the
    # activation.
    is_plain = not callable(weights) and "delta" not in weights
    # No assignment expression: AutoGraph of TensorFlow warns of them.
    products = _products_of_torch() if is_plain else None
    if products:
        kernel, bias = weights["kernel"], weights["bias"]
        if products.is_for_onednn(x, kernel):
            return products.linear_by_onednn(x, kernel, bias, name)
    inner = linear(weights, x)
    if fused_ops and name in ("gelu", "gelu_new"):
        return fused_ops.gelu(inner)
    return ACTIVATIONS[name](inner)


def _normalized_sum(weights, x, residual, fused_ops):
    """LayerNorm of x + residual, [B S, H], with statistics in float32.

    `fused_ops` also add in float32. Without them the sum has the compute dtype,
    so that in mixed precision both differ in the last bits.
    """
    gamma, beta = weights["gamma"], weights["beta"]
    if fused_ops:
        return fused_ops.add_and_normalize(x, residual, gamma, beta)
    x = x + residual
    return ops.layer_normalization(x, gamma, beta, -1, LAYER_NORM_EPSILON)


def dropout(x, rate: float, seed=None):
    """Keras's dropout with a seed that was drawn before; None for no dropout.

    The seed is an argument because of rematerialization: a seed drawn inside
    the function would be drawn anew when the backward pass recomputes the
    activations, and the gradient would belong to a different dropout mask.
    """
    if seed is None or not rate:
        return x
    return keras.random.dropout(x, rate, seed=DrawnSeed(seed))


def _seed(seeds, index):
    return None if seeds is None else seeds[index]


def _low_rank(delta, x):
    """The low-rank terms (x A) B of n kernels at once.

    A is [H, n R], the n matrices side by side, and B is [n, R, O].
    """
    x = ops.matmul(x, delta["a"])
    n, rank, _ = delta["b"].shape
    # One product for each kernel. A single batched product would, with rank
    # 1, have the inner dimension of 1 that `encoder.block` avoids.
    return ops.concatenate(
        [
            ops.matmul(x[..., i * rank : (i + 1) * rank], delta["b"][i])
            for i in range(n)
        ],
        axis=-1,
    )


def _query_key_value(weights, x):
    """The queries, keys and values of all positions, each [B, S, H]."""
    if "qkv" not in weights:
        return [linear(weights[name], x) for name in ("query", "key", "value")]
    return ops.split(linear(weights["qkv"], x), 3, axis=-1)


def _has_kernel(dtype) -> bool:
    """Whether the backend's fused attention takes a dtype, and returns it."""
    dtype = keras.backend.standardize_dtype(dtype)
    backend = keras.backend.backend()
    if (dtype, backend) == ("float64", "torch"):
        return False  # Keras would return float32
    if (dtype, backend) != ("float16", "jax"):
        return True
    import jax

    return jax.default_backend() != "cpu"


def _split_heads(tokens, x, heads: int):
    """Reshapes `tokens`, [B S, H], to [B, S, A, D]; `x` is [B, S, H]."""
    batch, length, hidden = ops.shape(x)
    return ops.reshape(tokens, (batch, length, heads, hidden // heads))


def attention_bias(padding_mask, example_ids, dtype):
    """The bias of attention scores: 0 for visible keys, else MASKED_SCORE.

    MASKED_SCORE is low enough that the softmax is exactly 0 in every float
    dtype. Tokens with equal `example_ids`, if given, attend to one another.

    Returns float [B, 1, 1, S]; with `example_ids` [B, 1, S (query), S (key)].
    """
    seen = ops.expand_dims(ops.cast(padding_mask, dtype), (1, 2))
    if example_ids is not None:
        together = ops.equal(
            ops.expand_dims(example_ids, (1, 3)),
            ops.expand_dims(example_ids, (1, 2)),
        )
        seen = seen * ops.cast(together, dtype)
    return (1.0 - seen) * MASKED_SCORE


def _attention_probs(query, key, attention_bias):
    # The query is scaled, not the scores: those could overflow float16.
    query = query * query.shape[-1] ** -0.5
    scores = ops.cast(ops.einsum("btad,bsad->bats", query, key), "float32")
    probs = ops.softmax(scores + ops.cast(attention_bias, "float32"))
    return ops.cast(probs, query.dtype)


class Half(layers.Layer):
    """Abstract: a layer whose method `tensors` returns its weights."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config

    def _dense(self, units: int, name: str) -> layers.Dense:
        return layers.Dense(
            units,
            kernel_initializer=initializer(self.config),
            dtype=self.dtype_policy,
            name=name,
        )

    def _read(self, dense: layers.Dense):
        """A dict of a layer's kernel and bias; if int8, the layer itself."""
        if dense.quantization_mode is not None:
            return dense
        kernel = adapted_kernel(dense) if dense.lora_enabled else dense.kernel
        return {
            "kernel": ops.cast(kernel, self.compute_dtype),
            "bias": ops.cast(dense.bias, self.compute_dtype),
        }

    def _read_norm(self, norm: layers.LayerNormalization):
        # LayerNorm keeps its dtype; the cast only makes tensors of variables.
        return {
            "gamma": ops.cast(norm.gamma, norm.gamma.dtype),
            "beta": ops.cast(norm.beta, norm.beta.dtype),
        }


class AttentionHalf(Half):
    """Weights of self-attention, its output projection and LayerNorm."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(config, **kwargs)
        # Separate variables, as LAMB computes a trust ratio for each of them.
        self.query = self._dense(config.hidden_size, "query")
        self.key = self._dense(config.hidden_size, "key")
        self.value = self._dense(config.hidden_size, "value")
        self.output_dense = self._dense(config.hidden_size, "output")
        self.layer_norm = layer_norm("layer_norm", self.dtype_policy)

    def build(self, input_shape=None):
        hidden = (None, None, self.config.hidden_size)
        for layer in (self.query, self.key, self.value, self.output_dense):
            layer.build(hidden)
        self.layer_norm.build(hidden)
        self.built = True

    def tensors(self) -> dict:
        """Dict of `qkv` (three kernels concatenated), `output`, `layer_norm`.

        A quantized model has `query`, `key` and `value` instead of `qkv`.
        """
        query, key, value = map(self._read, (self.query, self.key, self.value))
        if any(map(callable, (query, key, value))):
            projections = {"query": query, "key": key, "value": value}
        else:
            projections = {
                "qkv": {
                    name: ops.concatenate(
                        [query[name], key[name], value[name]], axis=-1
                    )
                    for name in ("kernel", "bias")
                }
            }
        return projections | {
            "output": self._read(self.output_dense),
            "layer_norm": self._read_norm(self.layer_norm),
        }


class FeedForwardHalf(Half):
    """Weights of the feed-forward network and its LayerNorm."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.intermediate = self._dense(
            config.intermediate_size, "intermediate"
        )
        self.output_dense = self._dense(config.hidden_size, "output")
        self.layer_norm = layer_norm("layer_norm", self.dtype_policy)

    def build(self, input_shape=None):
        hidden = (None, None, self.config.hidden_size)
        self.intermediate.build(hidden)
        self.output_dense.build((None, None, self.config.intermediate_size))
        self.layer_norm.build(hidden)
        self.built = True

    def tensors(self) -> dict:
        """Dict of `intermediate`, `output` and `layer_norm`."""
        return {
            "intermediate": self._read(self.intermediate),
            "output": self._read(self.output_dense),
            "layer_norm": self._read_norm(self.layer_norm),
        }
