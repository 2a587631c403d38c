"""How blocks repeat: L layers share the blocks of their group (Paper 3.1).

Letters: B batch, S sequence length, H hidden size, L layers, A heads,
I inner blocks of a layer.
"""

import keras
from keras import layers, ops, tree

from keras_albert.config import (
    LOOPS,
    AlbertConfig,
    check_choice,
    check_flag,
)
from keras_albert.modeling.block import DROPOUTS, Block, block

# Added to the scores of padded keys (reference modeling.py L818-828).
MASKED_SCORE = -10000.0
# Which halves the layers of a group share (Paper Table 4).
SHARED_HALVES = {
    "all": ("attention", "feed_forward"),
    "attention": ("attention",),
    "ffn": ("feed_forward",),
    "none": (),
}


class Encoder(layers.Layer):
    """Applies the I blocks of a layer, L times.

    Args:
        config: the architecture.
        loop: "unrolled" writes the layers out; "scan" compiles one layer of
            each group and loops over it: faster to compile, and on TPU the
            gradient of a shared weight is summed before devices exchange it.
            The outputs are the same.
        remat: compute a layer's activations again for the gradient instead of
            keeping them: memory of one layer, a third more time.
    """

    def __init__(
        self,
        config: AlbertConfig,
        loop: str = "unrolled",
        remat: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("loop", loop, LOOPS)
        check_flag("remat", remat)
        self.config = config
        self.loop = loop
        self.remat = remat
        shared = SHARED_HALVES[config.sharing]
        own = [half for half in SHARED_HALVES["all"] if half not in shared]
        if config.relaxed_rank:
            own += [f"{half}_delta" for half in shared]
        self.shared = self._blocks("group", config.num_hidden_groups, shared)
        self.own = self._blocks("layer", config.num_hidden_layers, own)
        self.seed_generator = keras.random.SeedGenerator()

    def _blocks(self, kind: str, count: int, parts) -> list[list[Block]]:
        """`count` rows of I blocks."""
        return [
            [
                Block(
                    self.config,
                    tuple(parts),
                    dtype=self.dtype_policy,
                    name=f"{kind}_{number}_block_{inner}",
                )
                for inner in range(self.config.inner_group_num if parts else 0)
            ]
            for number in range(count)
        ]

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        for row in (*self.shared, *self.own):
            for each in row:
                each.build()
        self.built = True

    def call(
        self,
        x,
        padding_mask,
        example_ids=None,
        training=None,
        return_scores=False,
        first_only=False,
    ):
        """The outputs of all layers.

        Args:
            x: float [B, S, H].
            padding_mask: int [B, S].
            example_ids: int [B, S], where rows hold several examples.
            training: whether dropout acts.
            return_scores: also return the attention probabilities.
            first_only: of the last layer compute the first position alone,
                where nothing else is read; a scan computes all.

        Returns:
            L tensors [B, S, H], with `first_only` the last of them [B, 1, H]
            or more; L x I tensors [B, A, S, S] or none.
        """
        bias = attention_bias(padding_mask, example_ids, x.dtype)
        seeds = self._draw_seeds() if training else None

        def layer(x, weights, seeds, is_last=False):
            scores = []
            for inner, each in enumerate(weights):
                seed = None if seeds is None else seeds[inner]
                x, probs = block(
                    self.config,
                    each,
                    x,
                    bias,
                    seed,
                    not return_scores,
                    first_only and is_last and inner + 1 == len(weights),
                )
                scores.append(probs)
            return x, scores if return_scores else []

        # Read once a call, however often they are used.
        shared = [[each.tensors() for each in row] for row in self.shared]
        own = [[each.tensors() for each in row] for row in self.own]
        quantized = any(map(callable, tree.flatten((shared, own))))
        if quantized or return_scores:  # the plain form knows both
            return self._unrolled(layer, x, shared, own, seeds)
        if self.remat and training:
            layer = _rematerialized(layer)
        if self.loop == "scan":
            return self._scan(layer, x, shared, own, seeds), []
        return self._unrolled(layer, x, shared, own, seeds)

    def _unrolled(self, layer, x, shared, own, seeds):
        outputs, scores = [], []
        for index in range(self.config.num_hidden_layers):
            weights = _together(shared[self.config.group_of(index)], own[index])
            seed = None if seeds is None else seeds[index]
            is_last = index + 1 == self.config.num_hidden_layers
            x, layer_scores = layer(x, weights, seed, is_last)
            outputs.append(x)
            scores += layer_scores
        return outputs, scores

    def _scan(self, layer, x, shared, own, seeds):
        outputs = []
        for group, group_weights in enumerate(shared):
            indices = [
                index
                for index in range(self.config.num_hidden_layers)
                if self.config.group_of(index) == group
            ]
            first, end = indices[0], indices[-1] + 1
            # What differs from layer to layer: weights of its own, seeds.
            each = {}
            if own[first]:
                each["own"] = tree.map_structure(
                    lambda *tensors: ops.stack(tensors), *own[first:end]
                )
            if seeds is not None:
                each["seeds"] = seeds[first:end]

            def step(x, each, group_weights=group_weights):
                weights = _together(group_weights, each.get("own", []))
                x, _ = layer(x, weights, each.get("seeds"))
                return x, x

            if each:
                x, states = ops.scan(step, x, each)
            else:
                x, states = ops.scan(
                    lambda x, _, step=step: step(x, {}), x, length=end - first
                )
            outputs += ops.unstack(states, end - first)
        return outputs

    def _draw_seeds(self):
        """int [L, I, DROPOUTS, 2]; None where no dropout acts.

        All at once and random: counted up they would meet those of the next
        step, as torch takes the sum of the two.
        """
        config = self.config
        if not (
            config.hidden_dropout_prob or config.attention_probs_dropout_prob
        ):
            return None
        seeds = keras.random.randint(
            (config.num_hidden_layers, config.inner_group_num, DROPOUTS, 2),
            0,
            2**31 - 1,
            seed=self.seed_generator,
        )
        return ops.cast(seeds, self.seed_generator.state.dtype)


def attention_bias(padding_mask, example_ids, dtype):
    """What is added to scores: 0 where a token may look, else MASKED_SCORE.

    Of that a softmax makes 0 exactly, in every float dtype.

    Args:
        padding_mask: int [B, S].
        example_ids: int [B, S], equal for the tokens that may look at one
            another; None: all of a row may.

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


def _together(shared: list[dict], own: list[dict]) -> list[dict]:
    """The weights of a layer's blocks, shared and own."""
    if not (shared and own):
        return shared or own
    return [a | b for a, b in zip(shared, own, strict=True)]


def _rematerialized(layer):
    """`keras.remat` of a layer; exact on every backend.

    What has a gradient goes in flat: TensorFlow's gives none to what a
    function finds around it. The seeds have none and may stay outside.
    """

    def call(x, weights, seeds, is_last=False):
        def flat_layer(x, *tensors):
            again = tree.pack_sequence_as(weights, tensors)
            return layer(x, again, seeds, is_last)[0]

        return keras.remat(flat_layer)(x, *tree.flatten(weights)), []

    return call
