"""Factorized embedding (Paper 3.1): token ids to vectors of width H.

Letters: B batch, S sequence length, E embedding size, H hidden size.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from keras_albert.modeling.config import LAYER_NORM_EPSILON, AlbertConfig
from keras_albert.modeling.configured import ConfiguredLayer
from keras_albert.modeling.inputs import check_inputs


def initializer(config: AlbertConfig) -> keras.initializers.Initializer:
    """A new truncated normal initializer, as every kernel uses."""
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def layer_norm(name: str, dtype=None) -> layers.LayerNormalization:
    """LayerNorm over the last axis with ALBERT's epsilon."""
    return layers.LayerNormalization(
        epsilon=LAYER_NORM_EPSILON, dtype=dtype, name=name
    )


_CHECKED = (np.ndarray, keras.KerasTensor)


def _integers(ids):
    """Casts float tensors to int32; returns other ids unchanged.

    `keras.Input` has the dtype float32 by default, and Keras builds a
    subclassed model that it loads with float32 tensors. Float arrays, on the
    other hand, are a user's mistake: they stay as they are, and
    `check_inputs` refuses them.
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
    unless the config says `project_equal_sizes`.

    Args:
        config: the architecture; the layers' sizes come from it.

    Call arguments:
        token_ids: int [B, S].
        segment_ids: int [B, S], 0 for the first text and 1 for the second;
            zeros when absent.
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
        # Checked here, not in `call`: Keras adds many lines to errors of
        # `call`.
        given = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "position_ids": position_ids,
        }
        given = {
            name: _integers(ids)
            for name, ids in given.items()
            if ids is not None
        }
        # Other tensors are not checked: while a backend traces a graph, an
        # unknown size may be a placeholder.
        if all(isinstance(ids, _CHECKED) for ids in given.values()):
            check_inputs(self.config, given, takes_packed=True)
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
