"""A vector for a text.

Letters: B batch, N texts, S sequence length, H hidden size.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_albert.errors import check_choice
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.headed import HeadedModel
from keras_albert.text.special_tokens import PAD_ID

POOLINGS = ("mean", "cls")


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForTextEmbedding(HeadedModel):
    """A vector for a text.

    A pretrained encoder alone gives poor ones: fine-tune it on pairs first.

    Args:
        backbone: the encoder; its pooler is not used.
        pooling: "mean" of the vectors of all tokens, or "cls", the first one.

    Call arguments:
        inputs: those of AlbertBackbone.

    Returns:
        float32 [B, H].
    """

    def __init__(
        self, backbone: AlbertBackbone, pooling: str = "mean", **kwargs: Any
    ):
        super().__init__(backbone, **kwargs)
        check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """There are no weights beside the encoder's."""
        self.built = True

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        """See the class."""
        x = self.backbone(inputs, training=training)["sequence_output"]
        x = ops.cast(x, "float32")
        if self.pooling == "cls":
            return x[:, 0]
        mask = inputs.get("padding_mask")
        if mask is None:
            mask = ops.not_equal(inputs["token_ids"], PAD_ID)
        mask = ops.expand_dims(ops.cast(mask, "float32"), -1)  # [B, S, 1]
        return ops.sum(x * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1)

    def encode(
        self,
        texts: list[str],
        batch_size: int = 32,
        normalize: bool = True,
    ) -> np.ndarray:
        """The vectors of texts.

        Args:
            texts: N texts.
            batch_size: texts at a time.
            normalize: to length 1.

        Returns:
            float32 [N, H].
        """
        vectors = self.predict(texts, batch_size=batch_size, verbose=0)
        if not normalize:
            return vectors
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    def similarity(self, a: list[str], b: list[str]) -> np.ndarray:
        """Cosine of the angle between texts, float32 [len(a), len(b)]."""
        return self.encode(a) @ self.encode(b).T

    def get_config(self) -> dict[str, Any]:
        """Serializable arguments of the constructor."""
        return {**super().get_config(), "pooling": self.pooling}
