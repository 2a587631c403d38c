"""The right one of several choices, inside a graph.

Letters: B examples, C choices of each.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_albert.tasks.early_exit_graph import Tensors
from keras_albert.tasks.graph import ServingGraph
from keras_albert.text.graph_characters import equally_many
from keras_albert.text.graph_rows import pack_choices


def serve_choices(graph: ServingGraph, has_question: bool) -> Callable:
    """`serving_default` of a model that chooses.

    Its inputs are `text` [B], `choices` [B, C] and, if there are questions,
    `question` [B]; its outputs `choice` int32 [B] and `probabilities` float32
    [B, C].
    """

    def answers(text, question, choices) -> Tensors:
        batch, count = tf.unstack(tf.shape(choices))
        length = graph.predictor.sequence_length
        packed = pack_choices(graph.tokenizer, text, question, choices, length)
        logits = graph.rows(packed)["logits"]
        probabilities = tf.nn.softmax(tf.reshape(logits, [batch, count]))
        return {
            "choice": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
            "probabilities": probabilities,
        }

    def choose(text, choices):
        text, choices = equally_many(text=text, choices=choices)
        return answers(text, tf.zeros_like(text), choices)

    def choose_for_question(text, question, choices):
        return answers(
            *equally_many(text=text, question=question, choices=choices)
        )

    return choose_for_question if has_question else choose
