"""One transformer block: an attention half and a feed-forward half.

Each half ends with its own residual and LayerNorm (post-LN), so that either
can be shared alone. Letters: B batch, S sequence length, H hidden size,
A heads, D = H / A, F feed-forward width.
"""

from keras import layers, ops

from keras_albert.config import AlbertConfig
from keras_albert.modeling.embeddings import initializer, layer_norm

# The reference's gelu is the tanh form under both names (modeling.py L299).
ACTIVATIONS = {
    "gelu": lambda x: ops.gelu(x, approximate=True),
    "gelu_new": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
}


def _dense(units: int, config: AlbertConfig, name: str) -> layers.Dense:
    return layers.Dense(
        units, kernel_initializer=initializer(config), name=name
    )


class AttentionHalf(layers.Layer):
    """Multi-head self-attention, output projection, residual, LayerNorm."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        # Three kernels, not one: LAMB's trust ratio is per variable.
        self.query = _dense(config.hidden_size, config, "query")
        self.key = _dense(config.hidden_size, config, "key")
        self.value = _dense(config.hidden_size, config, "value")
        self.output_dense = _dense(config.hidden_size, config, "output")
        self.probs_dropout = layers.Dropout(config.attention_probs_dropout_prob)
        self.dropout = layers.Dropout(config.hidden_dropout_prob)
        self.layer_norm = layer_norm("layer_norm")

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        hidden = (None, None, self.config.hidden_size)
        for layer in (self.query, self.key, self.value, self.output_dense):
            layer.build(hidden)
        self.layer_norm.build(hidden)

    def call(self, x, attention_bias, training=None):
        """float [B, S, H], float [B, 1, 1, S] -> float [B, S, H]."""
        query = self._split_heads(self.query(x))  # [B, A, S, D]
        key = self._split_heads(self.key(x))
        value = self._split_heads(self.value(x))
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))  # [B, A, S, S]
        head_size = self.config.hidden_size // self.config.num_attention_heads
        probs = ops.softmax(scores * head_size**-0.5 + attention_bias)
        probs = self.probs_dropout(probs, training=training)
        context = self._join_heads(ops.matmul(probs, value))  # [B, S, H]
        output = self.dropout(self.output_dense(context), training=training)
        return self.layer_norm(x + output)

    def _split_heads(self, x):
        batch, length = ops.shape(x)[:2]
        heads = self.config.num_attention_heads
        x = ops.reshape(
            x, (batch, length, heads, self.config.hidden_size // heads)
        )
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, x):
        x = ops.transpose(x, (0, 2, 1, 3))
        batch, length = ops.shape(x)[:2]
        return ops.reshape(x, (batch, length, self.config.hidden_size))


class FeedForwardHalf(layers.Layer):
    """H -> F -> activation -> H, residual, LayerNorm."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.intermediate = _dense(
            config.intermediate_size, config, "intermediate"
        )
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output_dense = _dense(config.hidden_size, config, "output")
        self.dropout = layers.Dropout(config.hidden_dropout_prob)
        self.layer_norm = layer_norm("layer_norm")

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        hidden = (None, None, self.config.hidden_size)
        self.intermediate.build(hidden)
        self.output_dense.build((None, None, self.config.intermediate_size))
        self.layer_norm.build(hidden)

    def call(self, x, training=None):
        """float [B, S, H] -> float [B, S, H]."""
        inner = self.activation(self.intermediate(x))  # [B, S, F]
        output = self.dropout(self.output_dense(inner), training=training)
        return self.layer_norm(x + output)


class Block(layers.Layer):
    """The transformer block that ALBERT applies again and again."""

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.attention = AttentionHalf(config, name="attention")
        self.feed_forward = FeedForwardHalf(config, name="feed_forward")

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.attention.build()
        self.feed_forward.build()

    def call(self, x, attention_bias, training=None):
        """float [B, S, H], float [B, 1, 1, S] -> float [B, S, H]."""
        x = self.attention(x, attention_bias, training=training)
        return self.feed_forward(x, training=training)
