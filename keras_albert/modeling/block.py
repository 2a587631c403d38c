"""One transformer block: an attention half and a feed-forward half.

Each half ends with its own residual and LayerNorm (post-LN), so that either
can be shared alone. A layer here only holds weights; functions of tensors
compute. So a half that many layers share is read once a call (joined, cast to
the compute dtype), and a loop or a rematerialization gets a pure function.

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
# Dropouts of a block, in the order of their seeds: attention probabilities,
# attention output, feed-forward output.
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
        weights: of `AttentionHalf.tensors` (and `AttentionDelta.tensors`).
        x: float [B, S, H].
        attention_bias: float [B, 1, 1, S] or [B, 1, S, S], added to the
            scores of each key.
        seeds: int [DROPOUTS, 2], or None: no dropout.
        fused: let the backend's kernel compute it where nothing forbids.
        first_only: return T = 1 position, the first, instead of T = S.

    Returns:
        float [B, T, H], and the attention probabilities [B, A, S, S]: None
        from the fused kernel, which never holds them.
    """
    query, key, value = (
        _split_heads(each, config.num_attention_heads)  # [B, S, A, D]
        for each in _query_key_value(weights, x)
    )
    rate = config.attention_probs_dropout_prob
    # JAX's kernel refuses float16 where no GPU is.
    half = keras.backend.standardize_dtype(query.dtype) == "float16"
    if fused and not half and (seeds is None or not rate):
        probs = None
        # Not flash attention: of Keras's kernels for it, torch's takes no
        # bias, and JAX's on TPU leaves it out without a word.
        context = ops.dot_product_attention(
            query, key, value, bias=attention_bias, flash_attention=False
        )
    else:
        probs = _attention_probs(query, key, attention_bias)  # [B, A, S, S]
        dropped = dropout(probs, rate, _seed(seeds, 0))
        context = ops.einsum("bats,bsad->btad", dropped, value)
    context = ops.reshape(context, ops.shape(x))  # [B, S, H]
    if first_only:
        # All positions attend, although one is read: the gradient of a single
        # query is a matrix product over an inner dimension of 1. oneDNN 3.7
        # (TensorFlow 2.20 and 2.21) corrupts memory where two such products
        # have the same shape and different layouts; see
        # tests/e2e/test_onednn.py.
        x, context = x[:, :1], context[:, :1]  # [B, 1, H]
    output = linear(weights["output"], context)
    output = dropout(output, config.hidden_dropout_prob, _seed(seeds, 1))
    return normalize(weights["layer_norm"], x + output), probs


def feed_forward_half(config: AlbertConfig, weights, x, seeds=None):
    """H -> F -> activation -> H, residual, LayerNorm; float [B, S, H]."""
    inner = linear(weights["intermediate"], x)  # [B, S, F]
    output = linear(weights["output"], ACTIVATIONS[config.hidden_act](inner))
    output = dropout(output, config.hidden_dropout_prob, _seed(seeds, 2))
    return normalize(weights["layer_norm"], x + output)


def linear(weights, x):
    """x W + b, and of a relaxed layer its own low-rank part."""
    if callable(weights):  # a quantized layer: Keras computes in int8
        return weights(x)
    y = ops.matmul(x, weights["kernel"]) + weights["bias"]
    return y + _low_rank(weights["delta"], x) if "delta" in weights else y


def normalize(weights, x):
    """LayerNorm over the last axis, computed in float32."""
    return ops.layer_normalization(
        x, weights["gamma"], weights["beta"], -1, LAYER_NORM_EPSILON
    )


def dropout(x, rate: float, seed=None):
    """Keras's dropout with a seed that was drawn before; None: no dropout.

    Drawn inside a rematerialized function, the seed would be drawn again for
    the gradient, which would then belong to another mask.
    """
    if seed is None or not rate:
        return x
    return keras.random.dropout(x, rate, seed=DrawnSeed(seed))


def _seed(seeds, place):
    return None if seeds is None else seeds[place]


def _low_rank(delta, x):
    """(x A) B for each of n kernels side by side: [H, n R], [n, R, O]."""
    x = ops.matmul(x, delta["a"])
    n, rank, _ = delta["b"].shape
    # Products of two axes each: joined into one product of three axes, rank 1
    # would have the inner dimension that `attention_half` avoids.
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
    query = query * query.shape[-1] ** -0.5  # before: float16 ends at 65504
    scores = ops.cast(ops.einsum("btad,bsad->bats", query, key), "float32")
    probs = ops.softmax(scores + ops.cast(attention_bias, "float32"))
    return ops.cast(probs, query.dtype)


class Half(layers.Layer):
    """Abstract: weights that `tensors` gives to the functions above."""

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
        """A kernel with its bias; a quantized layer stays itself."""
        if dense.quantization_mode is not None:
            return dense
        return {
            "kernel": ops.cast(dense.kernel, self.compute_dtype),
            "bias": ops.cast(dense.bias, self.compute_dtype),
        }

    def _read_norm(self, norm: layers.LayerNormalization):
        # In their own precision; `cast` also makes a variable a tensor.
        return {
            "gamma": ops.cast(norm.gamma, norm.gamma.dtype),
            "beta": ops.cast(norm.beta, norm.beta.dtype),
        }


class AttentionHalf(Half):
    """Weights of self-attention, its output projection and LayerNorm."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(config, **kwargs)
        # Three kernels, not one: LAMB's trust ratio is per variable.
        self.query = self._dense(config.hidden_size, "query")
        self.key = self._dense(config.hidden_size, "key")
        self.value = self._dense(config.hidden_size, "value")
        self.output_dense = self._dense(config.hidden_size, "output")
        self.layer_norm = layer_norm("layer_norm", self.dtype_policy)

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        hidden = (None, None, self.config.hidden_size)
        for layer in (self.query, self.key, self.value, self.output_dense):
            layer.build(hidden)
        self.layer_norm.build(hidden)
        self.built = True

    def tensors(self) -> dict:
        """query, key and value side by side; output; layer_norm."""
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
        """Makes the weights; their shapes follow from the config."""
        hidden = (None, None, self.config.hidden_size)
        self.intermediate.build(hidden)
        self.output_dense.build((None, None, self.config.intermediate_size))
        self.layer_norm.build(hidden)
        self.built = True

    def tensors(self) -> dict:
        """intermediate, output, layer_norm."""
        return {
            "intermediate": self._read(self.intermediate),
            "output": self._read(self.output_dense),
            "layer_norm": self._read_norm(self.layer_norm),
        }


class LowRank(layers.Layer):
    """A [inputs, R] and B [R, outputs]; B starts at zero, so A B does."""

    def __init__(
        self, config: AlbertConfig, inputs: int, outputs: int, **kwargs
    ):
        super().__init__(**kwargs)
        self.config = config
        self.inputs, self.outputs = inputs, outputs

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
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
        """Makes the weights; their shapes follow from the config."""
        for part in self.parts:
            part.build()
        self.built = True

    def tensors(self) -> dict:
        """As `AttentionHalf.tensors`, of the kernels."""
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
        """Makes the weights; their shapes follow from the config."""
        self.intermediate.build()
        self.output_part.build()
        self.built = True

    def tensors(self) -> dict:
        """As `FeedForwardHalf.tensors`, of the kernels."""
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
    """The parts of a block that live in one place; see `SharedEncoder`.

    The name of this class is part of the paths inside `.keras` files.
    """

    def __init__(self, config: AlbertConfig, parts: tuple[str, ...], **kwargs):
        super().__init__(**kwargs)
        self.parts = {
            name: PARTS[name](config, dtype=self.dtype_policy, name=name)
            for name in parts
        }

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        for part in self.parts.values():
            part.build()
        self.built = True

    def tensors(self) -> dict:
        """The weights of each part."""
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
    """Both halves; see `attention_half` for arguments and what it returns.

    `weights` are those of one or two `Block.tensors`, together all halves.
    """
    attention = _relaxed(weights, "attention")
    feed_forward = _relaxed(weights, "feed_forward")
    x, probs = attention_half(
        config, attention, x, attention_bias, seeds, fused, first_only
    )
    return feed_forward_half(config, feed_forward, x, seeds), probs


def _relaxed(weights, half: str):
    """The weights of a half, each kernel with the layer's own difference."""
    deltas = weights.get(f"{half}_delta", {})
    return weights[half] | {
        name: weights[half][name] | {"delta": delta}
        for name, delta in deltas.items()
    }
