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
from keras_albert.tasks.early_exit import FEW_TOKENS

Tensors = dict[str, tf.Tensor]


def early_outputs(
    model: AlbertForSequenceClassification,
    rule: EarlyExit,
    rows: Tensors,
    rows_leave: bool = True,
) -> Tensors:
    """`logits` float32 [R, C], and `layers` int32 [R], how many were needed.

    `rows` are the inputs. Rows that have their answer leave the loop; or, with
    `rows_leave=False`, they are computed until the last of them has it, and the
    shapes of all tensors are known as soon as those of the inputs are. The
    CompiledModel of LiteRT needs that.

    With at most FEW_TOKENS, and for LiteRT, a layer is completed before its
    answer is computed.
    """
    x = model.backbone.embeddings(rows["token_ids"], rows["segment_ids"])
    bias = attention_bias(padding_mask_of(rows), None, x.dtype)
    layers = rule.layers_of_all(model.config.num_hidden_layers)
    if layers is not None:  # no row is asked whether it stops
        return _Exits(model, rule).after(layers, x, bias)
    if not rows_leave:
        found = _Exits(model, rule, leave=False, complete=True).loop(x, bias)
        # The CompiledModel of LiteRT 2.3 does not copy what a loop returns to
        # its outputs, which stay 0. It copies the result of other operations.
        ran = tf.reduce_min(found["layers"]) > 0
        return {name: x * tf.cast(ran, x.dtype) for name, x in found.items()}
    return tf.cond(
        tf.size(rows["token_ids"]) <= FEW_TOKENS,
        lambda: _Exits(model, rule, complete=True).loop(x, bias),
        lambda: _Exits(model, rule).loop(x, bias),
    )


class _Exits:
    """The loop over layers, which are all the same, and its iterations.

    `leave` says whether rows with an answer leave the loop, and `complete`
    whether a layer is completed before its answer.
    """

    def __init__(
        self,
        model: AlbertForSequenceClassification,
        rule: EarlyExit,
        leave: bool = True,
        complete: bool = False,
    ):
        self._model, self._rule = model, rule
        self._leave, self._complete = leave, complete
        self._blocks = model.backbone.encoder.weights_of(0)
        self._kernels, self._biases = classifiers_of(model)

    def after(self, layers: int, x: tf.Tensor, bias: tf.Tensor) -> Tensors:
        """The outputs if all rows stop after so many layers."""
        config, blocks = self._model.config, self._blocks * layers
        x, context = up_to_attention(config, blocks, x, bias)
        first = first_token(config, blocks[-1], x, context)
        return {
            "logits": self._logits(first, layers - 1),
            "layers": tf.fill(tf.shape(x)[:1], layers),
        }

    def loop(self, x: tf.Tensor, bias: tf.Tensor) -> Tensors:
        """The outputs; `x` is the input of the first layer."""
        state = self._answered(_before_the_layers(self._model, bias), x)
        shapes = {
            name: tf.TensorShape(
                [None, *each.shape[1:]] if each.shape.rank else []
            )
            for name, each in state.items()
        }
        (state,) = tf.while_loop(
            self._goes_on,
            lambda state: (self._next_layer(state),),
            (state,),
            shape_invariants=(shapes,),
            parallel_iterations=1,
        )
        return {"logits": state["logits"], "layers": state["layers"]}

    def _logits(self, first: tf.Tensor, layer) -> tf.Tensor:
        """The logits of a layer, from 0, of its first token."""
        # The classifiers compute in float32, whatever the encoder does. Of two
        # dtypes TensorFlow would make a SparseMatMul, which only CPUs have.
        pooled = tf.cast(self._model.backbone.pooler(first), "float32")
        logits = tf.matmul(pooled, tf.gather(self._kernels, layer))
        return logits + tf.gather(self._biases, layer)

    def _answered(self, state: Tensors, x: tf.Tensor) -> Tensors:
        """The state after a layer, whose input is `x`.

        `state` is that of the rows that are in the loop, after the layer
        before.
        """
        config, bias = self._model.config, state["bias"]
        last = self._blocks[-1]
        x, context = up_to_attention(config, self._blocks, x, bias)
        if self._complete:
            x = rest_of_block(config, last, x, context)
            first = x[:, 0]
        else:
            first = first_token(config, last, x, context)
        logits = self._logits(first, state["layer"])
        layer = state["layer"] + 1
        stops, answers, agreements = stops_after(
            self._rule,
            self._model.problem,
            layer,
            logits,
            state["answers"],
            state["agreements"],
        )
        going = state["going"]
        of_rows = {
            "x": x,
            **({} if self._complete else {"context": context}),
            "bias": bias,
            "rows": state["rows"],
            "going": going & ~stops,
            "answers": answers,
            "agreements": agreements,
        }
        if self._leave:
            places = state["rows"][:, tf.newaxis]
            kept = tf.where(~stops)[:, 0]
            of_rows = {k: tf.gather(x, kept) for k, x in of_rows.items()}
            found = {
                "logits": tf.tensor_scatter_nd_update(
                    state["logits"], places, logits
                ),
                "layers": tf.tensor_scatter_nd_update(
                    state["layers"], places, tf.fill(tf.shape(stops), layer)
                ),
            }
        else:
            found = {
                "logits": tf.where(
                    going[:, tf.newaxis], logits, state["logits"]
                ),
                "layers": tf.where(going, layer, state["layers"]),
            }
        return {"layer": layer, **of_rows, **found}

    def _goes_on(self, state: Tensors) -> tf.Tensor:
        """Whether a row has no answer yet, and there is another layer."""
        is_left = state["layer"] < self._model.config.num_hidden_layers
        return tf.reduce_any(state["going"]) & is_left

    def _next_layer(self, state: Tensors) -> Tensors:
        """Completes a layer for the rows that go on, and adds the next one."""
        config, last, x = self._model.config, self._blocks[-1], state["x"]
        if not self._complete:
            x = rest_of_block(config, last, x, state["context"])
        return self._answered(state, x)


def _before_the_layers(
    model: AlbertForSequenceClassification, bias: tf.Tensor
) -> Tensors:
    """The state before the first layer; `bias` is that of attention."""
    count = tf.shape(bias)[0]
    width = model.num_labels if model.problem == "multi_label" else 1
    return {
        "layer": tf.constant(0),
        "bias": bias,
        # the numbers of the rows in the loop, and which have no answer yet
        "rows": tf.range(count),
        "going": tf.ones([count], tf.bool),
        "answers": tf.zeros([count, width]),
        "agreements": tf.zeros([count], tf.int32),
        "logits": tf.zeros([count, model.num_labels]),
        "layers": tf.zeros([count], tf.int32),
    }


def stops_after(
    rule: EarlyExit, problem: str, layer, logits, answers, agreements
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes `tasks.early_exit.Stopping` for a layer of a graph.

    `rule` has a patience or a confidence: a number of layers needs no loop.
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
