"""Labels and numbers of texts, inside a graph.

Letters: B examples, C labels.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_albert.tasks.decisions import DEFAULT_THRESHOLD, Threshold
from keras_albert.tasks.early_exit_graph import Tensors
from keras_albert.tasks.graph import ServingGraph

# The parser's errors name the operation, and not the input.
_PARSER_NAME = "inputs_must_be_tf.Examples_with_one_string_as_the_feature_text"


def serve_texts(
    graph: ServingGraph, decode: Callable[[tf.Tensor], Tensors]
) -> dict[str, Callable]:
    """`serving_default`, which is also `pair` for pairs of texts.

    `decode` is a function from logits [B, C] to the outputs of the signatures.
    """

    def serve(text):
        return decode(graph.by_length(text)["logits"])

    def serve_pairs(text, pair):
        return decode(graph.by_length(text, pair)["logits"])

    if graph.predictor.reads_pairs:
        return {"serving_default": serve_pairs, "pair": serve_pairs}
    return {"serving_default": serve}


def serve_classes(graph: ServingGraph) -> dict[str, Callable]:
    """`serve_texts` for classes, and `classify` for single texts."""
    names = tf.constant(graph.predictor.labels)
    threshold = graph.predictor.threshold

    def decode(logits):
        probabilities = tf.nn.softmax(logits)
        predicted = tf.argmax(probabilities, axis=-1)
        if threshold is not None:
            predicted = tf.cast(probabilities[:, 1] > threshold[0], tf.int64)
        return {
            "label": tf.gather(names, predicted),
            "score": tf.gather(probabilities, predicted, batch_dims=1),
            **_named(probabilities, names),
        }

    functions = serve_texts(graph, decode)
    if not graph.predictor.reads_pairs:
        functions["classify"] = classify(functions["serving_default"])
    return functions


def decode_several(
    labels: Sequence[str], threshold: Threshold | None
) -> Callable[[tf.Tensor], Tensors]:
    """All probabilities, and which labels are chosen by them."""
    names = tf.constant(labels)
    limits = tf.constant(threshold or [DEFAULT_THRESHOLD] * len(labels))

    def decode(logits):
        probabilities = tf.sigmoid(logits)
        return {
            **_named(probabilities, names),
            "chosen": probabilities > limits,
        }

    return decode


def decode_number(logits: tf.Tensor) -> Tensors:
    """The number, as `score`."""
    return {"score": logits[:, 0]}


def _named(probabilities: tf.Tensor, names: tf.Tensor) -> Tensors:
    # A server expects as many rows in each output, so that names are repeated.
    labels = tf.tile(names[tf.newaxis], [tf.shape(probabilities)[0], 1])
    return {"probabilities": probabilities, "labels": labels}


def classify(serve: Callable[[tf.Tensor], Tensors]) -> Callable:
    """The classification of TensorFlow Serving, which takes tf.Examples."""

    def classify(inputs):
        form = {"text": tf.io.FixedLenFeature([], tf.string)}
        found = tf.io.parse_example(_examples(inputs), form, name=_PARSER_NAME)
        served = serve(found["text"])
        return {"classes": served["labels"], "scores": served["probabilities"]}

    return classify


def _examples(inputs: tf.Tensor) -> tf.Tensor:
    """The inputs; an error of the graph unless each may be a tf.Example.

    The first byte of a tf.Example is always 10; the parser detects more.
    """
    # Not ==, which compares with a NumPy array in TensorFlow's NumPy mode.
    may_be = tf.equal(tf.strings.substr(inputs, 0, 1), "\n") | tf.equal(
        inputs, ""
    )
    check = tf.debugging.Assert(
        tf.reduce_all(may_be),
        ["`inputs` must be serialized tf.Example messages with a string "
         "feature `text`; for plain texts there is `serving_default`. "
         "Received something else in row:", tf.where(~may_be)[:1, 0]],
    )  # fmt: skip
    with tf.control_dependencies([check]):
        return tf.identity(inputs)
