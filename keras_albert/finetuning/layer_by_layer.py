"""Computes a model with exits one layer at a time, for inference.

After each layer, the examples that have their answer leave the batch. Only then
is the layer completed for the others, since the answer needs its first token
alone (see `modeling/exits.py`); unless the batch has at most FEW_TOKENS tokens.

Letters: B batch, S sequence length, H hidden size, C labels.
"""

import copy
import functools
import itertools
from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_albert.distribution.backend import compiled
from keras_albert.modeling.backbone import padding_mask_of
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.encoder import rest_of_block
from keras_albert.modeling.exits import (
    classifiers_of,
    first_token,
    up_to_attention,
)
from keras_albert.modeling.layers import attention_bias
from keras_albert.tasks.early_exit import (
    FEW_TOKENS,
    EarlyExit,
    Stopping,
    check_exits,
)


class LayerByLayer:
    """A function from the inputs of a model to its logits, [B, C].

    Args:
        model: a model with `exits`.
        rule: when an example stops.

    Attributes:
        rows, layers: the number of rows that were computed in all calls, and
            the number of layers that all of them needed.

    Raises:
        AlbertError: see `check_exits`.
    """

    def __init__(self, model: AlbertForSequenceClassification, rule: EarlyExit):
        check_exits(rule, model)
        self.rows = self.layers = 0
        self._model, self._rule = model, rule
        self._compile()

    def with_rule(self, rule: EarlyExit) -> "LayerByLayer":
        """A copy with another rule, which uses what has been compiled."""
        check_exits(rule, self._model)
        other = copy.copy(self)
        other._rule = rule
        other.rows = other.layers = 0
        return other

    @property
    def needs_all_layers(self) -> bool:
        """Whether no example stops early, so that the model computes as well.

        Then it should: it is faster, and its results differ in the last digits.
        """
        count = self._model.config.num_hidden_layers
        return self._rule.layers_of_all(count) == count

    def count_all(self, rows: int) -> None:
        """Counts rows that the model has computed in place of this object."""
        self.rows += rows
        self.layers += rows * self._model.config.num_hidden_layers

    def _compile(self) -> None:
        model = self._model
        self._variables = model.variables
        self._embed = compiled(model, self._embedded)
        # by whether the layer of the exit is completed
        self._exits = {
            completes: compiled(
                model, functools.partial(self._one_exit, completes)
            )
            for completes in (False, True)
        }
        self._weights = compiled(model, self._all_weights)

    def __call__(
        self,
        model: AlbertForSequenceClassification,
        x: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        return self.with_layers(model, x)["logits"]

    def with_layers(
        self,
        model: AlbertForSequenceClassification,
        x: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """`logits` float32 [B, C], and `layers` needed, int [B]."""
        variables = model.variables
        if [*map(id, variables)] != [*map(id, self._variables)]:
            # It was quantized, or got LoRA adapters, since it was compiled.
            check_exits(self._rule, model)
            self._compile()
        blocks, pooler, classifiers = self._weights()
        blocks = [blocks[which] for which in self._blocks_of_layers()]
        rows = np.arange(len(x["token_ids"]))  # those that go on
        padded = self._padded(rows)
        vectors, bias = self._embed({n: each[padded] for n, each in x.items()})
        stopping = Stopping(self._rule, model.problem)
        used = np.zeros(len(rows), int)
        found = np.zeros((len(rows), model.num_labels), "float32")
        last = self._rule.layers or len(blocks)
        # There is no context yet: any array of its shape stands for it.
        state, done, pending = [vectors, vectors, bias], 0, []
        for layer in range(self._rule.layers or 1, last + 1):
            tokens = state[0].shape[0] * state[0].shape[1]
            # The last layer need not be completed. But where each shape is
            # compiled, a second function would be compiled for it alone.
            asked = self._rule.layers is None
            goes_on = layer < last or (asked and model.compiles_each_shape)
            completes = goes_on and tokens <= FEW_TOKENS
            *state, logits = self._exits[completes](
                [*itertools.chain(*blocks[done:layer])],
                pending,
                pooler,
                classifiers[layer - 1],
                *state,
            )
            done, pending = layer, [] if completes else blocks[layer - 1][-1:]
            logits = ops.convert_to_numpy(logits)[: len(rows)]
            found[rows], used[rows] = logits, layer
            if layer == last:
                break
            stops = stopping.after(logits)
            if stops.all():
                break
            if stops.any():
                kept = np.flatnonzero(~stops)
                rows = rows[kept]
                stopping.keep(kept)
                padded = self._padded(kept)
                state = [ops.take(each, padded, axis=0) for each in state]
        self.rows += len(used)
        self.layers += int(used.sum())
        return {"logits": found, "layers": used}

    def _padded(self, rows: np.ndarray) -> np.ndarray:
        """The rows; if each shape is compiled, a power of two of them.

        The rows that are added are copies of the last one.
        """
        if not (self._model.compiles_each_shape and len(rows)):
            return rows
        size = 1 << (len(rows) - 1).bit_length()
        return np.pad(rows, (0, size - len(rows)), "edge")

    def _blocks_of_layers(self) -> list[int]:
        """The first layer with the same weights, for each layer, from 0."""
        encoder, config = self._model.backbone.encoder, self._model.config
        groups = [config.group_of(i) for i in range(config.num_hidden_layers)]
        return [
            layer if encoder.own[layer] else groups.index(group)
            for layer, group in enumerate(groups)
        ]

    def _embedded(self, x):
        """The vectors before the first layer, and the attention bias."""
        backbone = self._model.backbone
        vectors = backbone.embeddings(x["token_ids"], x["segment_ids"])
        return vectors, attention_bias(padding_mask_of(x), None, vectors.dtype)

    def _all_weights(self):
        """The weights of blocks by layer, of the pooler, of classifiers."""
        model = self._model
        encoder, pooler = model.backbone.encoder, model.backbone.pooler
        classifiers = map(ops.unstack, classifiers_of(model))
        return keras.tree.map_structure(
            ops.convert_to_tensor,
            (
                {i: encoder.weights_of(i) for i in {*self._blocks_of_layers()}},
                # in the type in which the pooler computes
                [
                    ops.cast(each, pooler.compute_dtype)
                    for each in (pooler.kernel, pooler.bias)
                ],
                [*zip(*classifiers, strict=True)],
            ),
        )

    def _one_exit(
        self,
        completes,
        blocks,
        to_complete,
        pooler,
        classifier,
        x,
        context,
        bias,
    ):
        """Completes a layer, and computes the next one as far as its exit.

        `to_complete` is a list of the last block of the layer before, for
        which `up_to_attention` returned `x` and `context`, [B, S, H]. If it is
        empty, `x` is the input of `blocks`. `completes` says whether these are
        completed, too, so that the next layer needs no `context`.

        Returns both for `blocks`, the bias, and the logits [B, C].
        """
        config = self._model.config
        for each in to_complete:
            x = rest_of_block(config, each, x, context)
        x, context = up_to_attention(config, blocks, x, bias)
        if completes:
            x = rest_of_block(config, blocks[-1], x, context)
            first = x[:, 0]
        else:
            first = first_token(config, blocks[-1], x, context)
        pooled = ops.tanh(_dense(first, *pooler))
        return x, context, bias, _dense(pooled, *classifier)


def _dense(x, kernel, bias):
    """x W + b, in the type of the kernel."""
    return ops.matmul(ops.cast(x, kernel.dtype), kernel) + bias
