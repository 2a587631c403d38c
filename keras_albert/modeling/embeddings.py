"""Factorized embedding (Paper 3.1): ids -> vectors of the encoder's width.

Letters: B batch, S sequence length, E embedding size, H hidden size.
"""

import keras
from keras import layers, ops

from keras_albert.config import LAYER_NORM_EPSILON, AlbertConfig


def initializer(config: AlbertConfig) -> keras.initializers.Initializer:
    """A fresh truncated normal, of which every kernel starts."""
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def layer_norm(name: str, dtype=None) -> layers.LayerNormalization:
    """LayerNorm over the last axis with ALBERT's epsilon."""
    return layers.LayerNormalization(
        epsilon=LAYER_NORM_EPSILON, dtype=dtype, name=name
    )


class Embeddings(layers.Layer):
    """word + segment + position -> LayerNorm -> dropout -> projection E -> H.

    The projection is absent when E == H (reference modeling.py L970-1014),
    unless the config says `project_equal_sizes`.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config

        def table(kind, size, name, **kwargs):
            return kind(
                size,
                config.embedding_size,
                embeddings_initializer=initializer(config),
                dtype=self.dtype_policy,
                name=name,
                **kwargs,
            )

        # Reversible: the masked-LM decoder is the same table.
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

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        for table in (self.word, self.segment, self.position):
            table.build((None, None))
        vectors = (None, None, self.config.embedding_size)
        self.layer_norm.build(vectors)
        if self.projection is not None:
            self.projection.build(vectors)
        self.built = True

    def call(self, token_ids, segment_ids, position_ids=None, training=None):
        """int [B, S] each -> float [B, S, H]; positions are 0 to S - 1."""
        if position_ids is None:
            # A cumulative sum, not a slice of the table: slices of unknown
            # length break several exporters.
            ones = ops.ones_like(token_ids, "int32")
            position_ids = ops.cumsum(ones, axis=1) - 1
        x = self.word(token_ids)
        x = x + self.segment(segment_ids)
        x = x + self.position(position_ids)
        x = self.dropout(self.layer_norm(x), training=training)  # [B, S, E]
        return x if self.projection is None else self.projection(x)
