"""A model with exits inside a graph: layers until every row has its answer.

Letters: R rows, C labels, K numbers that make an answer: 1, or C with several
labels.
"""

import tensorflow as tf

from keras_albert.modeling.backbone import padding_mask_of
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.encoder import rest_of_block
from keras_albert.modeling.exits import (
    classifiers_of,
    first_token,
    up_to_attention,
)
from keras_albert.modeling.layers import attention_bias
from keras_albert.tasks.config import EarlyExit

Tensors = dict[str, tf.Tensor]


def early_outputs(
    model: AlbertForSequenceClassification, rule: EarlyExit, rows: Tensors
) -> Tensors:
    """`logits` float32 [R, C], and `layers` int32 [R], how many were needed.

    `rows` are the inputs; rows that have their answer leave the loop.
    """
    exits = _Exits(model, rule)
    x = model.backbone.embeddings(rows["token_ids"], rows["segment_ids"])
    bias = attention_bias(padding_mask_of(rows), None, x.dtype)
    if rule.layers is not None:  # no row is asked whether it stops
        blocks = exits.blocks * rule.layers
        x, context = up_to_attention(model.config, blocks, x, bias)
        return {
            "logits": exits.logits(x, context, rule.layers - 1),
            "layers": tf.fill(tf.shape(x)[:1], rule.layers),
        }
    state = exits.answered(_before_the_layers(model, bias), x)
    shapes = {
        name: tf.TensorShape([None, *each.shape[1:]] if each.shape.rank else [])
        for name, each in state.items()
    }
    (state,) = tf.while_loop(
        exits.goes_on,
        lambda state: (exits.next_layer(state),),
        (state,),
        shape_invariants=(shapes,),
        parallel_iterations=1,
    )
    return {"logits": state["logits"], "layers": state["layers"]}


class _Exits:
    """What an iteration of the loop consists of; all layers are the same."""

    def __init__(self, model: AlbertForSequenceClassification, rule: EarlyExit):
        self._model, self._rule = model, rule
        self.blocks = model.backbone.encoder.weights_of(0)
        self._kernels, self._biases = classifiers_of(model)

    def logits(self, x: tf.Tensor, context: tf.Tensor, layer) -> tf.Tensor:
        """The logits of a layer, from 0; see `up_to_attention`."""
        config, last = self._model.config, self.blocks[-1]
        first = first_token(config, last, x, context)
        # The classifiers compute in float32, whatever the encoder does. Of two
        # dtypes TensorFlow would make a SparseMatMul, which only CPUs have.
        pooled = tf.cast(self._model.backbone.pooler(first), "float32")
        logits = tf.matmul(pooled, tf.gather(self._kernels, layer))
        return logits + tf.gather(self._biases, layer)

    def answered(self, state: Tensors, x: tf.Tensor) -> Tensors:
        """The state after a layer, whose input is `x`."""
        config, bias = self._model.config, state["bias"]
        x, context = up_to_attention(config, self.blocks, x, bias)
        logits = self.logits(x, context, state["layer"])
        layer = state["layer"] + 1
        places = state["rows"][:, tf.newaxis]
        stops, answers, agreements = stops_after(
            self._rule,
            self._model.problem,
            layer,
            logits,
            state["answers"],
            state["agreements"],
        )
        kept = tf.where(~stops)[:, 0]
        going_on = {
            "x": x,
            "context": context,
            "bias": bias,
            "rows": state["rows"],
            "answers": answers,
            "agreements": agreements,
        }
        return {
            "layer": layer,
            **{name: tf.gather(each, kept) for name, each in going_on.items()},
            "logits": tf.tensor_scatter_nd_update(
                state["logits"], places, logits
            ),
            "layers": tf.tensor_scatter_nd_update(
                state["layers"], places, tf.fill(tf.shape(stops), layer)
            ),
        }

    def goes_on(self, state: Tensors) -> tf.Tensor:
        """Whether a row has no answer yet, and there is another layer."""
        is_left = state["layer"] < self._model.config.num_hidden_layers
        return (tf.size(state["rows"]) > 0) & is_left

    def next_layer(self, state: Tensors) -> Tensors:
        """Completes a layer for the rows that go on, and adds the next one."""
        config, last = self._model.config, self.blocks[-1]
        return self.answered(
            state, rest_of_block(config, last, state["x"], state["context"])
        )


def _before_the_layers(
    model: AlbertForSequenceClassification, bias: tf.Tensor
) -> Tensors:
    """The state before the first layer; `bias` is that of attention."""
    count = tf.shape(bias)[0]
    width = model.num_labels if model.problem == "multi_label" else 1
    return {
        "layer": tf.constant(0),
        "bias": bias,
        # the numbers of the rows that go on
        "rows": tf.range(count),
        "answers": tf.zeros([count, width]),
        "agreements": tf.zeros([count], tf.int32),
        "logits": tf.zeros([count, model.num_labels]),
        "layers": tf.zeros([count], tf.int32),
    }


def stops_after(
    rule: EarlyExit, problem: str, layer, logits, answers, agreements
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes `tasks.early_exit.Stopping` for a layer of a graph.

    `rule` has a patience or a confidence; a number of layers needs no loop.
    `layer` is its number, from 1, and `logits` are float32 [R, C]. `answers`,
    float32 [R, K], and `agreements`, int32 [R], are those of the layer before.
    Returns which rows stop, bool [R]; and their answers and agreements.
    """
    if rule.confidence is not None:
        if problem == "single_label":
            certain = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
        else:
            certain = tf.reduce_min(tf.sigmoid(tf.abs(logits)), axis=-1)
        return certain >= rule.confidence, answers, agreements
    found = logits
    if problem == "single_label":
        found = tf.argmax(logits, axis=-1)[:, tf.newaxis]
    elif problem == "multi_label":
        found = logits > 0
    found = tf.cast(found, tf.float32)
    near = rule.tolerance if problem == "regression" else 0.5
    equal = tf.reduce_all(tf.abs(found - answers) < near, axis=-1)
    agreements = tf.where(equal & (layer > 1), agreements + 1, 0)
    return agreements >= rule.patience, found, agreements
