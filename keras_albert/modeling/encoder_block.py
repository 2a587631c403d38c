"""EncoderBlock: one transformer block as a public Keras layer.

Letters: B batch, S sequence length, H hidden size, A heads.
"""

from typing import Any

import keras
from keras import ops

from keras_albert.modeling.block import (
    DROPOUTS,
    AttentionHalf,
    FeedForwardHalf,
    block,
)
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.configured import VectorLayer

# Added to the scores of padded keys (reference modeling.py L818-828).
MASKED_SCORE = -10000.0


@keras.saving.register_keras_serializable("keras_albert")
class EncoderBlock(VectorLayer):
    """One transformer block: self-attention, then a feed-forward network.

    Both have a dropout, a residual connection and a LayerNorm. To share the
    weights among layers, as ALBERT does, call the same block several times;
    `SharedEncoder` does so for L layers, and faster.

    Args:
        config: the architecture. The block uses `hidden_size`,
            `num_attention_heads`, `intermediate_size`, `hidden_act`, both
            dropout rates and `initializer_range`.

    Call arguments:
        x: float [B, S, H].
        padding_mask: int or bool [B, S], 1 for a token, 0 for padding, which
            no token attends to. If it is absent, the Keras mask of `x` is
            used (as of `keras.layers.Embedding(mask_zero=True)`), if any.
        example_ids: int [B, S], for rows that hold several examples: tokens
            attend only to tokens with the same number.
        training: whether to apply dropout.
        return_attention_scores: also return the attention probabilities.

    Returns:
        float [B, S, H]; with `return_attention_scores` a tuple of it and
        float [B, A, S, S].

    Raises:
        AlbertError: an input has another shape or dtype.

    Source: reference modeling.py L797-884, Paper 3.1.
    """

    def __init__(self, config: AlbertConfig, **kwargs: Any):
        super().__init__(config, **kwargs)
        policy = self.dtype_policy
        self.attention = AttentionHalf(config, dtype=policy, name="attention")
        self.feed_forward = FeedForwardHalf(
            config, dtype=policy, name="feed_forward"
        )
        self.seed_generator = keras.random.SeedGenerator()

    def build(self, input_shape: Any = None) -> None:
        self.attention.build()
        self.feed_forward.build()
        self.built = True

    def call(
        self,
        x: Any,
        padding_mask: Any = None,
        example_ids: Any = None,
        mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        padding_mask = chosen_mask(x, padding_mask, mask)
        bias = attention_bias(padding_mask, example_ids, x.dtype)
        seeds = None
        if training:
            seeds = draw_seeds(self.config, self.seed_generator)
        weights = {
            "attention": self.attention.tensors(),
            "feed_forward": self.feed_forward.tensors(),
        }
        x, probs = block(
            self.config, weights, x, bias, seeds, not return_attention_scores
        )
        return (x, probs) if return_attention_scores else x

    def compute_output_spec(
        self,
        x: Any,
        *args: Any,
        return_attention_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        output = keras.KerasTensor(x.shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        batch, length, _ = x.shape
        heads = self.config.num_attention_heads
        probs = (batch, heads, length, length)
        return output, keras.KerasTensor(probs, self.compute_dtype)


def chosen_mask(x, padding_mask, mask):
    """`padding_mask`, else the Keras mask, else a mask without padding."""
    if padding_mask is not None:
        return padding_mask
    return ops.ones(ops.shape(x)[:2], "int32") if mask is None else mask


def attention_bias(padding_mask, example_ids, dtype):
    """The bias of attention scores: 0 for visible keys, else MASKED_SCORE.

    MASKED_SCORE is low enough that the softmax is exactly 0 in every float
    dtype.

    Args:
        padding_mask: int or bool [B, S], 1 for a token, 0 for padding.
        example_ids: int [B, S]; tokens with equal numbers attend to one
            another. None if all tokens of a row do.
        dtype: the float dtype of the result.

    Returns:
        float [B, 1, 1, S]; with `example_ids` [B, 1, S (query), S (key)].
    """
    seen = ops.expand_dims(ops.cast(padding_mask, dtype), (1, 2))
    if example_ids is not None:
        together = ops.equal(
            ops.expand_dims(example_ids, (1, 3)),
            ops.expand_dims(example_ids, (1, 2)),
        )
        seen = seen * ops.cast(together, dtype)
    return (1.0 - seen) * MASKED_SCORE


def draw_seeds(config: AlbertConfig, generator, *blocks: int):
    """Draws all dropout seeds of a call: int [*blocks, DROPOUTS, 2].

    Returns None if both dropout rates are 0. The seeds are random numbers,
    not consecutive ones: on torch, Keras seeds a generator with the sum of
    the two integers, so that consecutive seeds would repeat in the next step.
    """
    if not (config.hidden_dropout_prob or config.attention_probs_dropout_prob):
        return None
    seeds = keras.random.randint(
        (*blocks, DROPOUTS, 2), 0, 2**31 - 1, seed=generator
    )
    return ops.cast(seeds, generator.state.dtype)
