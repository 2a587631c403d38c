"""The serving graph of the similarity of two texts."""

import tensorflow as tf

from keras_albert.tasks.early_exit_graph import Tensors
from keras_albert.tasks.graph import ServingGraph
from keras_albert.text.graph_characters import equally_many


def serve_similarity(graph: ServingGraph):
    """The signature from `text` and `pair`, strings [B], to `score` [B]."""

    def serve(text: tf.Tensor, pair: tf.Tensor) -> Tensors:
        first, second = (
            tf.math.l2_normalize(graph.embed(each)["embedding"], axis=-1)
            for each in equally_many(text=text, pair=pair)
        )
        return {"score": tf.reduce_sum(first * second, axis=-1)}

    return serve
