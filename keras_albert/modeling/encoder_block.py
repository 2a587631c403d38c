"""EncoderBlock: one transformer block as a layer that can be called.

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

    Each half has its own dropout, residual and LayerNorm. Called several
    times, the layer shares its weights among the calls, as ALBERT does; a
    `SharedEncoder` does that for L layers, and faster.

    Args:
        config: the architecture: `hidden_size`, `num_attention_heads`,
            `intermediate_size`, `hidden_act`, both dropouts and
            `initializer_range` are read.

    Call arguments:
        x: float [B, S, H].
        padding_mask: int or bool [B, S], 1 for a token, 0 for padding, which
            no token attends to. When absent, the Keras mask of `x` counts
            (`keras.layers.Embedding(mask_zero=True)`), if there is one.
        example_ids: int [B, S], where a row holds several examples: tokens
            attend only to those of the same number.
        training: whether dropout acts.
        return_attention_scores: also return the attention probabilities.

    Returns:
        float [B, S, H]; if asked for, also float [B, A, S, S].

    Raises:
        AlbertError: inputs of another shape or dtype.

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
        """Makes the weights; their shapes follow from the config."""
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
        """See the class."""
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
        """What `call` returns, symbolically."""
        output = keras.KerasTensor(x.shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        batch, length, _ = x.shape
        heads = self.config.num_attention_heads
        probs = (batch, heads, length, length)
        return output, keras.KerasTensor(probs, self.compute_dtype)


def chosen_mask(x, padding_mask, mask):
    """The padding mask that was given, or Keras's, or one without padding."""
    if padding_mask is not None:
        return padding_mask
    return ops.ones(ops.shape(x)[:2], "int32") if mask is None else mask


def attention_bias(padding_mask, example_ids, dtype):
    """What is added to scores: 0 where a token may look, else MASKED_SCORE.

    Of that a softmax makes 0 exactly, in every float dtype.

    Args:
        padding_mask: int or bool [B, S].
        example_ids: int [B, S], equal for the tokens that may look at one
            another; None: all of a row may.
        dtype: of the result.

    Returns:
        float [B, 1, 1, S]; with `example_ids` [B, 1, S, S], where the axis of
        the tokens that look comes first.
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
    """int [*blocks, DROPOUTS, 2]; None where no dropout acts.

    All at once and random: counted up they would meet those of the next
    step, as torch takes the sum of the two.
    """
    if not (config.hidden_dropout_prob or config.attention_probs_dropout_prob):
        return None
    seeds = keras.random.randint(
        (*blocks, DROPOUTS, 2), 0, 2**31 - 1, seed=generator
    )
    return ops.cast(seeds, generator.state.dtype)
