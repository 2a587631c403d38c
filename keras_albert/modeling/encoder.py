"""The encoder: L layers that share the blocks of their group (Paper 3.1).

Letters: B batch, S sequence length, H hidden size, L layers, A heads,
I inner blocks of a layer.
"""

from typing import Any

import keras
from keras import layers, ops, tree

from keras_albert.errors import AlbertError, check_choice, check_flag
from keras_albert.modeling.base import VectorLayer
from keras_albert.modeling.config import LOOPS, AlbertConfig
from keras_albert.modeling.layers import (
    DROPOUTS,
    AttentionHalf,
    FeedForwardHalf,
    attention,
    attention_bias,
    attention_output,
    feed_forward,
)
from keras_albert.private_apis import track_in_checkpoints

HALVES = {"attention": AttentionHalf, "feed_forward": FeedForwardHalf}


class Block(layers.Layer):
    """Some or all parts of a transformer block.

    `SharedEncoder` has one `Block` for the parts that a group of layers
    shares, and one for the parts of each layer. Do not rename this class: its
    name is part of the paths inside `.keras` files.
    """

    def __init__(self, config: AlbertConfig, parts: tuple[str, ...], **kwargs):
        super().__init__(**kwargs)
        kinds = HALVES
        if config.relaxed_rank:
            # Imported late: only models with relaxed sharing need it.
            from keras_albert.modeling.relaxed import DELTAS

            kinds = HALVES | DELTAS
        self.parts = {
            name: kinds[name](config, dtype=self.dtype_policy, name=name)
            for name in parts
        }
        track_in_checkpoints(self, self.parts)

    def build(self, input_shape=None):
        for part in self.parts.values():
            part.build()
        self.built = True

    def tensors(self) -> dict:
        """The weights of each part, by its name."""
        return {name: part.tensors() for name, part in self.parts.items()}


# A block is computed by a function of its weights, not by a layer's `call`: the
# body of a scan and a rematerialized layer must be pure functions.
def block(
    config: AlbertConfig,
    weights,
    x,
    attention_bias,
    seeds=None,
    fused=True,
    first_only=False,
    training=False,
):
    """Applies a transformer block: the attention and feed-forward halves.

    Args:
        config: the architecture.
        weights: those of both halves: the results of `Block.tensors` of the
            shared block and of the layer's own block, joined into one dict.
        x: float [B, S, H].
        attention_bias: float [B, 1, 1, S] or [B, 1, S, S], added to scores.
        seeds: int [DROPOUTS, 2]; None for no dropout.
        fused: use the backend's fused attention kernel if possible.
        first_only: return only the first position (T = 1), not all (T = S).
        training: whether this is a step of training.

    Returns float [B, T, H]; and probabilities [B, A, S, S], None if fused.
    """
    context, probs = attention_of_block(
        config, weights, x, attention_bias, seeds, fused
    )
    if first_only:
        # Attention is computed for all positions although only one is used.
        # With a single query, the gradient would contain a matrix product with
        # an inner dimension of 1, and oneDNN 3.7 (TensorFlow 2.20 and 2.21)
        # corrupts memory if two such products have the same shape and
        # different layouts. tests/onednn_collision.py reproduces this.
        x, context = x[:, :1], context[:, :1]
    return rest_of_block(config, weights, x, context, seeds, training), probs


def attention_of_block(
    config, weights, x, attention_bias, seeds=None, fused=True
):
    """The first part of `block`, which reads all positions: attention.

    Returns the context vectors [B, S, H], and the probabilities.
    """
    half = _relaxed(weights, "attention")
    return attention(config, half, x, attention_bias, seeds, fused)


def rest_of_block(config, weights, x, context, seeds=None, training=False):
    """The rest of `block`, for the positions of `x` and `context`: [B, T, H].

    Positions do not depend on one another here, so that it may be computed
    for some of them alone.
    """
    half = _relaxed(weights, "attention")
    x = attention_output(config, half, x, context, seeds, training)
    half = _relaxed(weights, "feed_forward")
    return feed_forward(config, half, x, seeds, training)


def _relaxed(weights, half: str):
    """The weights of a half; its relaxed kernels get a `delta`."""
    deltas = weights.get(f"{half}_delta", {})
    if not deltas.keys() <= weights[half].keys():  # by Keras's own `quantize`
        raise AlbertError(
            "relaxed sharing cannot be quantized: its kernels are sums of two "
            "weights. Quantize a model whose config has relaxed_rank=0."
        )
    return weights[half] | {
        name: weights[half][name] | {"delta": delta}
        for name, delta in deltas.items()
    }


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
        x_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        padding_mask = chosen_mask(x, padding_mask, mask, x_mask)
        bias = attention_bias(padding_mask, example_ids, x.dtype)
        seeds = None
        if training:
            seeds = draw_seeds(self.config, self.seed_generator)
        weights = {
            "attention": self.attention.tensors(),
            "feed_forward": self.feed_forward.tensors(),
        }
        x, probs = block(
            self.config,
            weights,
            x,
            bias,
            seeds,
            not return_attention_scores,
            training=training,
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
        probs = (batch, self.config.num_attention_heads, length, length)
        return output, keras.KerasTensor(probs, self.compute_dtype)


def chosen_mask(x, padding_mask, mask, x_mask):
    """`padding_mask`, else the Keras mask, else a mask without padding.

    Keras gives the mask of `x` as `mask` if `x` is the only tensor of a call,
    and as `x_mask` beside others, such as `example_ids`.
    """
    for each in (padding_mask, mask, x_mask):
        if each is not None:
            return each
    return ops.ones(ops.shape(x)[:2], "int32")


def draw_seeds(config: AlbertConfig, generator, *blocks: int):
    """Draws all dropout seeds of a call: int [*blocks, DROPOUTS, 2], or None.

    None if both dropout rates are 0. The seeds are random numbers, not
    consecutive ones: on torch, Keras seeds a generator with the sum of the two
    integers, so that consecutive seeds would repeat in the next step.
    """
    if not (config.hidden_dropout_prob or config.attention_probs_dropout_prob):
        return None
    seeds = keras.random.randint(
        (*blocks, DROPOUTS, 2), 0, 2**31 - 1, seed=generator
    )
    seeds = ops.cast(seeds, generator.state.dtype)
    if keras.backend.backend() == "torch" and seeds.is_cuda:
        # Keras reads them in Python: once here, and not at every dropout, each
        # of which would wait for the GPU (as in a scan, which moves them back).
        seeds = seeds.cpu()
    return seeds


@keras.saving.register_keras_serializable("keras_albert")
class SharedEncoder(VectorLayer):
    """Applies L layers of I blocks each (Paper 3.1).

    Args:
        config: the architecture.
        loop: "unrolled" builds a graph of all layers; "scan" compiles one
            layer of each group and loops over it. A scan compiles faster, and
            on TPUs it sums the gradient of a shared weight over the layers
            before the devices exchange it. The outputs are the same.
        remat: whether training recomputes a layer's activations in the
            backward pass instead of storing them. Then only the outputs of
            all layers and the activations of one layer are in memory, and a
            step takes about a third longer.

    Call arguments:
        x, padding_mask, example_ids, training: as for `EncoderBlock`.
        return_hidden_states: also return every layer's output.
        return_attention_scores: also return the attention probabilities.
        first_only: return only the first position of the last layer. Unlike a
            scan, the unrolled loop then computes the last block for that
            position alone, except for its attention.

    Returns:
        The output of the last layer, float [B, S, H]; [B, 1, H] with
        `first_only`. With `return_hidden_states` or `return_attention_scores` a
        tuple of it and: L tensors [B, S, H], of which the last is [B, 1, H]
        with `first_only`; L x I tensors [B, A, S, S].

    Raises:
        AlbertError: an input has another shape or dtype.
    """

    def __init__(
        self,
        config: AlbertConfig,
        loop: str = "unrolled",
        remat: bool = False,
        **kwargs: Any,
    ):
        super().__init__(config, **kwargs)
        check_choice("loop", loop, LOOPS)
        check_flag("remat", remat)
        self.loop = loop
        self.remat = remat
        # On GPUs Keras compiles with XLA, which cannot differentiate the loop
        # that Keras makes of a scan on TensorFlow.
        is_loop = loop == "scan" and keras.backend.backend() == "tensorflow"
        self.supports_jit = not is_loop
        shared = config.shared_halves
        own = [half for half in HALVES if half not in shared]
        if config.relaxed_rank:
            own += [f"{half}_delta" for half in shared]
        self.shared = self._blocks("group", config.num_hidden_groups, shared)
        self.own = self._blocks("layer", config.num_hidden_layers, own)
        for row in (*self.shared, *self.own):
            track_in_checkpoints(self, {each.name: each for each in row})
        self.seed_generator = keras.random.SeedGenerator()

    def _blocks(self, kind: str, count: int, parts) -> list[list[Block]]:
        """A list of `count` lists of I blocks; of none if `parts` is empty."""
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

    def build(self, input_shape: Any = None) -> None:
        for row in (*self.shared, *self.own):
            for each in row:
                each.build()
        self.built = True

    def call(
        self,
        x: Any,
        padding_mask: Any = None,
        example_ids: Any = None,
        mask: Any = None,
        x_mask: Any = None,
        training: bool | None = None,
        return_hidden_states: bool = False,
        return_attention_scores: bool = False,
        first_only: bool = False,
    ) -> Any:
        padding_mask = chosen_mask(x, padding_mask, mask, x_mask)
        states, scores = self._apply_layers(
            x,
            attention_bias(padding_mask, example_ids, x.dtype),
            training,
            return_attention_scores,
            first_only,
        )
        if first_only and states[-1].shape[1] != 1:
            # A scan applies the same function to every layer, so that its last
            # layer has computed all positions.
            states[-1] = states[-1][:, :1]
        return _asked_for(
            states, scores, return_hidden_states, return_attention_scores
        )

    def _apply_layers(self, x, bias, training, return_scores, first_only):
        """The outputs of all layers, and on request their attention scores."""
        # Seeds are drawn before the loop over layers: a seed generator has a
        # state, which a pure function for a scan or remat must not change.
        config, seeds = self.config, None
        if training:  # int [L, I, DROPOUTS, 2]
            seeds = draw_seeds(
                config,
                self.seed_generator,
                config.num_hidden_layers,
                config.inner_group_num,
            )

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
                    training,
                )
                scores.append(probs)
            return x, scores if return_scores else []

        # Shared weights are concatenated and cast once, not in every layer.
        shared = [[each.tensors() for each in row] for row in self.shared]
        own = [[each.tensors() for each in row] for row in self.own]
        # A quantized projection is a layer, not a dict of tensors, and can be
        # neither stacked for a scan nor an argument of a rematerialized layer.
        quantized = any(map(callable, tree.flatten((shared, own))))
        if quantized or return_scores:  # only the unrolled loop supports both
            return _unrolled(config, layer, x, shared, own, seeds)
        if self.remat and training:
            layer = _rematerialized(layer)
        # With both, each step of the scan is rematerialized: only the outputs
        # of the layers are stored.
        if self.loop == "scan":
            return _scan(config, layer, x, shared, own, seeds), []
        return _unrolled(config, layer, x, shared, own, seeds)

    def weights_of(self, index: int) -> list[dict]:
        """The weights of layer `index`, from 0, as `block` takes them.

        The list has the weights of the I blocks of the layer.
        """
        shared = self.shared[self.config.group_of(index)]
        return _together(
            [each.tensors() for each in shared],
            [each.tensors() for each in self.own[index]],
        )

    def compute_output_spec(
        self,
        x: Any,
        *args: Any,
        return_hidden_states: bool = False,
        return_attention_scores: bool = False,
        first_only: bool = False,
        **kwargs: Any,
    ) -> Any:
        config, (batch, length, hidden) = self.config, x.shape
        heads = config.num_attention_heads
        lengths = [length] * config.num_hidden_layers
        lengths[-1] = 1 if first_only else length
        states = [
            keras.KerasTensor((batch, each, hidden), self.compute_dtype)
            for each in lengths
        ]
        scores = [
            keras.KerasTensor(
                (batch, heads, length, length), self.compute_dtype
            )
            for _ in range(config.num_hidden_layers * config.inner_group_num)
        ]
        return _asked_for(
            states, scores, return_hidden_states, return_attention_scores
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "loop": self.loop, "remat": self.remat}


def _unrolled(config, layer, x, shared, own, seeds):
    outputs, scores = [], []
    for index in range(config.num_hidden_layers):
        weights = _together(shared[config.group_of(index)], own[index])
        seed = None if seeds is None else seeds[index]
        is_last = index + 1 == config.num_hidden_layers
        x, layer_scores = layer(x, weights, seed, is_last)
        outputs.append(x)
        scores += layer_scores
    return outputs, scores


def _scan(config, layer, x, shared, own, seeds):
    """The outputs of all layers, with one scan for each group.

    Groups have different weights, so a single scan over all layers would
    have to stack the shared weights once for each layer.
    """
    outputs = []
    for group, group_weights in enumerate(shared):
        indices = [
            index
            for index in range(config.num_hidden_layers)
            if config.group_of(index) == group
        ]
        first, end = indices[0], indices[-1] + 1
        # The inputs of the scan, stacked over the layers of the group:
        # the weights that a layer does not share, and its dropout seeds.
        each = {}
        if own[first]:
            each["own"] = tree.map_structure(
                lambda *tensors: ops.stack(tensors), *own[first:end]
            )
        if seeds is not None:
            each["seeds"] = seeds[first:end]

        # The default argument binds the weights of this group: without it, the
        # function would see those of the last one if it is traced later.
        def step(x, each, group_weights=group_weights):
            weights = _together(group_weights, each.get("own", []))
            x, _ = layer(x, weights, each.get("seeds"))
            return x, x

        if each:
            x, states = ops.scan(step, x, each)
        else:  # all layers of the group are the same: nothing to stack
            x, states = ops.scan(
                lambda x, _, step=step: step(x, {}), x, length=end - first
            )
        outputs += ops.unstack(states, end - first)
    return outputs


def _asked_for(states, scores, return_hidden_states, return_scores):
    """The last state; in a tuple if states or scores were requested."""
    asked = [states] * return_hidden_states + [scores] * return_scores
    return (states[-1], *asked) if asked else states[-1]


def _together(shared: list[dict], own: list[dict]) -> list[dict]:
    """The weights of a layer's blocks: the shared ones and its own."""
    if not (shared and own):
        return shared or own
    return [a | b for a, b in zip(shared, own, strict=True)]


def _rematerialized(layer):
    """Wraps a layer in `keras.remat`, with exact gradients on every backend.

    All tensors with a gradient are passed as positional arguments, in a flat
    list: on TensorFlow, `keras.remat` gives no gradient to tensors that the
    function captures. The seeds have no gradient and may be captured.
    """

    def call(x, weights, seeds, is_last=False):
        def flat_layer(x, *tensors):
            again = tree.pack_sequence_as(weights, tensors)
            return layer(x, again, seeds, is_last)[0]

        return keras.remat(flat_layer)(x, *tree.flatten(weights)), []

    return call
