"""Relaxed sharing: each layer's low-rank differences from shared kernels.

Source: Bae et al. 2024 (arXiv:2410.20672). Letters: R rank.
"""

from keras import layers, ops

from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.layers import Half, initializer
from keras_albert.private_apis import track_in_checkpoints


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
        track_in_checkpoints(self, {part.name: part for part in self.parts})

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


DELTAS = {
    "attention_delta": AttentionDelta,
    "feed_forward_delta": FeedForwardDelta,
}
