"""AlbertForTextEmbedding: one vector for each text.

Letters: B batch, N texts, S sequence length, H hidden size.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_albert.errors import check_choice
from keras_albert.modeling.backbone import (
    AlbertBackbone,
    HeadedModel,
    padding_mask_of,
)

POOLINGS = ("mean", "cls")


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForTextEmbedding(HeadedModel):
    """Computes one vector for each text.

    A pretrained encoder gives poor vectors until it is fine-tuned, for
    instance on pairs of sentences.

    Args:
        backbone: the encoder; its pooler is not used.
        pooling: "mean" averages the vectors of all tokens; "cls" takes the
            vector of [CLS].

    Call arguments:
        inputs: see AlbertBackbone.

    Returns:
        float32 [B, H], not normalized.
    """

    def __init__(
        self, backbone: AlbertBackbone, pooling: str = "mean", **kwargs: Any
    ):
        super().__init__(backbone, **kwargs)
        check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        x = self.backbone(inputs, training=training)["sequence_output"]
        x = ops.cast(x, "float32")
        if self.pooling == "cls":
            return x[:, 0]
        mask = ops.cast(padding_mask_of(inputs), "float32")
        mask = ops.expand_dims(mask, -1)  # [B, S, 1]
        return ops.sum(x * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1)

    def encode(
        self,
        texts: list[str],
        batch_size: int = 32,
        normalize: bool = True,
    ) -> np.ndarray:
        """Computes the vectors of texts.

        Args:
            texts: N texts.
            batch_size: number of texts per batch.
            normalize: whether to scale the vectors to length 1.

        Returns:
            float32 [N, H].
        """
        vectors = self.predict(texts, batch_size=batch_size, verbose=0)
        if not normalize:
            return vectors
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    def similarity(self, a: list[str], b: list[str]) -> np.ndarray:
        """Cosine similarities of texts, float32 [len(a), len(b)]."""
        return self.encode(a) @ self.encode(b).T

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pooling": self.pooling}
