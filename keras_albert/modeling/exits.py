"""Classifiers after every layer, so that inference may stop early.

A model with exits learns to classify from the output of each of its layers
(PABEE, Zhou et al. 2020, arXiv:2006.04152). `tasks/early_exit.py` says when
inference stops, and `finetuning/layer_by_layer.py` computes it.

Letters: B batch, S sequence length, L layers, H hidden size, C labels.
"""

from typing import Any

import keras
from keras import layers, ops

from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.encoder import (
    attention_of_block,
    block,
    rest_of_block,
)
from keras_albert.modeling.layers import initializer


class ExitClassifiers(layers.Layer):
    """A linear classifier of its own for each layer but the last.

    Call arguments:
        pooled: float [B, L - 1, H].

    Returns:
        float32 logits [B, L - 1, C].
    """

    def __init__(self, config: AlbertConfig, num_labels: int, **kwargs: Any):
        super().__init__(dtype="float32", **kwargs)
        self.config = config
        self.num_labels = num_labels

    def build(self, input_shape: Any = None) -> None:
        count, hidden = self.config.num_hidden_layers, self.config.hidden_size
        self.kernel = self.add_weight(
            (count - 1, hidden, self.num_labels),
            initializer=initializer(self.config),
            name="kernel",
        )
        self.bias = self.add_weight(
            (count - 1, self.num_labels), initializer="zeros", name="bias"
        )
        self.built = True

    def call(self, pooled: Any) -> Any:
        # One product of two matrices for each layer: oneDNN confuses batched
        # products whose inner dimension is 1 with one another, and corrupts
        # memory (docs/decisions/onednn.md).
        logits = [
            ops.matmul(pooled[:, layer], self.kernel[layer])
            for layer in range(self.config.num_hidden_layers - 1)
        ]
        return ops.stack(logits, axis=1) + self.bias


def classifiers_of(model: keras.Model) -> tuple[Any, Any]:
    """The kernels [L, H, C] and biases [L, C] of the classifiers of all layers.

    `model` is a classifier with exits; shared classifiers are copied.
    """
    last, own = model.classifier, model.exit_classifiers
    if own is None:
        count = model.config.num_hidden_layers
        return tuple(
            ops.repeat(ops.convert_to_tensor(each)[None], count, axis=0)
            for each in (last.kernel, last.bias)
        )
    return tuple(
        ops.concatenate([ops.convert_to_tensor(lower), upper[None]])
        for lower, upper in (
            (own.kernel, ops.convert_to_tensor(last.kernel)),
            (own.bias, ops.convert_to_tensor(last.bias)),
        )
    )


# A classifier reads the first token alone. Of the last block before it, only
# attention needs all tokens; the rest is computed for the first token, and for
# the others later, with `rest_of_block`, if there is a next layer.
def up_to_attention(
    config: AlbertConfig, blocks: list[dict], x: Any, bias: Any
) -> tuple[Any, Any]:
    """Computes blocks, of the last one only attention.

    `blocks` are weights as `encoder.block` takes them, and `bias` is that of
    attention. Returns the input of the last block and its context vectors, both
    [B, S, H].
    """
    *whole, last = blocks
    for each in whole:
        x, _ = block(config, each, x, bias)
    return x, attention_of_block(config, last, x, bias)[0]


def first_token(config: AlbertConfig, last: dict, x: Any, context: Any) -> Any:
    """Completes `up_to_attention` for the first token alone: [B, H].

    `last` are the weights of the last block.
    """
    return rest_of_block(config, last, x[:, :1], context[:, :1])[:, 0]


def divide_logits(model: keras.Model, temperature: float) -> None:
    """Divides the weights of the classifiers of all layers by a number.

    `model` is an AlbertForSequenceClassification, with or without exits.
    """
    classifiers = model.classifier, model.exit_classifiers
    for each in filter(None, classifiers):
        for weight in (each.kernel, each.bias):
            weight.assign(weight / temperature)


def loss_weights(exits: str, count: int, seed: keras.random.SeedGenerator):
    """The weight of each layer's loss: float32 [L], their sum is 1.

    With "own" and "shared", the weight of layer l of L is proportional to l
    (Zhou et al. 2020, equation 6). With "drawn", one layer has the weight 1.
    """
    if exits == "drawn":
        drawn = keras.random.randint((), 0, count, seed=seed)
        return ops.one_hot(drawn, count, dtype="float32")
    total = count * (count + 1) / 2
    return ops.arange(1, count + 1, dtype="float32") / total
