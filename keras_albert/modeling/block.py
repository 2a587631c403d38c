"""One transformer block: an attention half and a feed-forward half.

Each half ends with its own residual connection and LayerNorm (post-LN), so
that the layers of a model can share one half without the other.

The Keras layers in this file only hold weights; the computation is in
functions of tensors. There are two reasons. Weights that many layers share
are read (concatenated, and cast to the compute dtype) only once per call of
the model. And a loop over layers or a rematerialization needs a pure function.

Letters: B batch, S sequence length, H hidden size, A heads, D = H / A,
F feed-forward width, R rank.
"""

import keras
from keras import layers, ops

from keras_albert.modeling.config import LAYER_NORM_EPSILON, AlbertConfig
from keras_albert.modeling.embeddings import initializer, layer_norm
from keras_albert.private_apis import DrawnSeed

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


def attention_half(
    config: AlbertConfig,
    weights,
    x,
    attention_bias,
    seeds=None,
    fused=True,
    first_only=False,
):
    """Multi-head self-attention, output projection, residual, LayerNorm.

    Args:
        config: the architecture.
        weights: the result of `AttentionHalf.tensors`, with relaxed sharing
            joined with that of `AttentionDelta.tensors`.
        x: float [B, S, H].
        attention_bias: float [B, 1, 1, S] or [B, 1, S, S], added to the
            attention scores.
        seeds: int [DROPOUTS, 2]; None for no dropout.
        fused: use the backend's fused attention kernel if possible.
        first_only: return only the first position (T = 1), not all (T = S).

    Returns:
        float [B, T, H], and the attention probabilities [B, A, S, S]. The
        fused kernel does not return probabilities: they are then None.
    """
    query, key, value = (
        _split_heads(each, config.num_attention_heads)  # [B, S, A, D]
        for each in _query_key_value(weights, x)
    )
    rate = config.attention_probs_dropout_prob
    # JAX's kernel does not support float16 on CPUs.
    half = keras.backend.standardize_dtype(query.dtype) == "float16"
    if fused and not half and (seeds is None or not rate):
        probs = None
        # Flash attention is off: Keras's flash kernel on torch does not accept
        # a bias, and the one of JAX on TPUs silently ignores it.
        context = ops.dot_product_attention(
            query, key, value, bias=attention_bias, flash_attention=False
        )
    else:
        probs = _attention_probs(query, key, attention_bias)  # [B, A, S, S]
        dropped = dropout(probs, rate, _seed(seeds, 0))
        context = ops.einsum("bats,bsad->btad", dropped, value)
    context = ops.reshape(context, ops.shape(x))  # [B, S, H]
    if first_only:
        # Attention is computed for all positions although only one is used.
        # With a single query, the gradient would contain a matrix product with
        # an inner dimension of 1, and oneDNN 3.7 (TensorFlow 2.20 and 2.21)
        # corrupts memory if two such products have the same shape and
        # different layouts. tests/e2e/test_onednn.py reproduces this.
        x, context = x[:, :1], context[:, :1]  # [B, 1, H]
    output = linear(weights["output"], context)
    output = dropout(output, config.hidden_dropout_prob, _seed(seeds, 1))
    return normalize(weights["layer_norm"], x + output), probs


def feed_forward_half(config: AlbertConfig, weights, x, seeds=None):
    """Feed-forward network (H -> F -> H), residual, LayerNorm: [B, S, H]."""
    inner = linear(weights["intermediate"], x)  # [B, S, F]
    output = linear(weights["output"], ACTIVATIONS[config.hidden_act](inner))
    output = dropout(output, config.hidden_dropout_prob, _seed(seeds, 2))
    return normalize(weights["layer_norm"], x + output)


def linear(weights, x):
    """x W + b, plus the layer's own low-rank term with relaxed sharing."""
    if callable(weights):  # a quantized Keras layer, which computes in int8
        return weights(x)
    y = ops.matmul(x, weights["kernel"]) + weights["bias"]
    return y + _low_rank(weights["delta"], x) if "delta" in weights else y


def normalize(weights, x):
    """LayerNorm over the last axis, computed in float32."""
    return ops.layer_normalization(
        x, weights["gamma"], weights["beta"], -1, LAYER_NORM_EPSILON
    )


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
    """(x A) B for n kernels at once; A is [H, n R] and B is [n, R, O]."""
    x = ops.matmul(x, delta["a"])
    n, rank, _ = delta["b"].shape
    # One product for each kernel. A single batched product would, with rank
    # 1, have the inner dimension of 1 that `attention_half` avoids.
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


def _split_heads(x, heads: int):
    batch, length, hidden = ops.shape(x)
    return ops.reshape(x, (batch, length, heads, hidden // heads))


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
        """A dict of kernel and bias; or the layer itself if it is quantized."""
        if dense.quantization_mode is not None:
            return dense
        return {
            "kernel": ops.cast(dense.kernel, self.compute_dtype),
            "bias": ops.cast(dense.bias, self.compute_dtype),
        }

    def _read_norm(self, norm: layers.LayerNormalization):
        # LayerNorm keeps its own precision. The cast to the same dtype turns
        # the variables into tensors.
        return {
            "gamma": ops.cast(norm.gamma, norm.gamma.dtype),
            "beta": ops.cast(norm.beta, norm.beta.dtype),
        }


class AttentionHalf(Half):
    """Weights of self-attention, its output projection and LayerNorm."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(config, **kwargs)
        # Query, key and value are separate variables, because LAMB computes a
        # trust ratio for each variable.
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


class LowRank(layers.Layer):
    """Weights A [inputs, R] and B [R, outputs] of a low-rank difference A B.

    B is initialized with zeros, so the difference starts at zero.
    """

    def __init__(
        self, config: AlbertConfig, inputs: int, outputs: int, **kwargs
    ):
        super().__init__(**kwargs)
        self.config = config
        self.inputs, self.outputs = inputs, outputs

    def build(self, input_shape=None):
        rank = self.config.relaxed_rank
        self.a = self.add_weight(
            name="a",
            shape=(self.inputs, rank),
            initializer=initializer(self.config),
        )
        self.b = self.add_weight(
            name="b", shape=(rank, self.outputs), initializer="zeros"
        )
        self.built = True


class AttentionDelta(Half):
    """A layer's own low-rank differences from a shared AttentionHalf."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(config, **kwargs)
        size = config.hidden_size
        self.parts = [
            LowRank(config, size, size, dtype=self.dtype_policy, name=name)
            for name in ("query", "key", "value", "output")
        ]

    def build(self, input_shape=None):
        for part in self.parts:
            part.build()
        self.built = True

    def tensors(self) -> dict:
        """Dict of `qkv` and `output`, each with its factors `a` and `b`."""
        *projections, output = self.parts
        return {
            "qkv": _side_by_side(projections, self.compute_dtype),
            "output": _side_by_side([output], self.compute_dtype),
        }


class FeedForwardDelta(Half):
    """A layer's own low-rank differences from a shared FeedForwardHalf."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(config, **kwargs)
        hidden, inner = config.hidden_size, config.intermediate_size
        policy = self.dtype_policy
        self.intermediate = LowRank(
            config, hidden, inner, dtype=policy, name="intermediate"
        )
        self.output_part = LowRank(
            config, inner, hidden, dtype=policy, name="output"
        )

    def build(self, input_shape=None):
        self.intermediate.build()
        self.output_part.build()
        self.built = True

    def tensors(self) -> dict:
        """Dict of `intermediate` and `output`, each with factors `a`, `b`."""
        return {
            "intermediate": _side_by_side(
                [self.intermediate], self.compute_dtype
            ),
            "output": _side_by_side([self.output_part], self.compute_dtype),
        }


def _side_by_side(parts: list[LowRank], dtype):
    return {
        "a": ops.concatenate([ops.cast(p.a, dtype) for p in parts], axis=-1),
        "b": ops.stack([ops.cast(p.b, dtype) for p in parts]),
    }


PARTS = {
    "attention": AttentionHalf,
    "feed_forward": FeedForwardHalf,
    "attention_delta": AttentionDelta,
    "feed_forward_delta": FeedForwardDelta,
}


class Block(layers.Layer):
    """Some or all parts of a transformer block.

    `SharedEncoder` has one `Block` for the parts that a group of layers
    shares, and one for the parts of each layer. Do not rename this class: its
    name is part of the paths inside `.keras` files.
    """

    def __init__(self, config: AlbertConfig, parts: tuple[str, ...], **kwargs):
        super().__init__(**kwargs)
        self.parts = {
            name: PARTS[name](config, dtype=self.dtype_policy, name=name)
            for name in parts
        }

    def build(self, input_shape=None):
        for part in self.parts.values():
            part.build()
        self.built = True

    def tensors(self) -> dict:
        """The weights of each part, by its name in `PARTS`."""
        return {name: part.tensors() for name, part in self.parts.items()}


def block(
    config: AlbertConfig,
    weights,
    x,
    attention_bias,
    seeds=None,
    fused=True,
    first_only=False,
):
    """Applies a transformer block: the attention and feed-forward halves.

    The arguments and the result are those of `attention_half`, except that
    `weights` holds both halves: the results of `Block.tensors` of the shared
    block and of the layer's own block, joined into one dict.
    """
    attention = _relaxed(weights, "attention")
    feed_forward = _relaxed(weights, "feed_forward")
    x, probs = attention_half(
        config, attention, x, attention_bias, seeds, fused, first_only
    )
    return feed_forward_half(config, feed_forward, x, seeds), probs


def _relaxed(weights, half: str):
    """The weights of a half; its relaxed kernels get a `delta`."""
    deltas = weights.get(f"{half}_delta", {})
    return weights[half] | {
        name: weights[half][name] | {"delta": delta}
        for name, delta in deltas.items()
    }
