"""Trains and calls every model on TensorFlow once, for test_onednn.py.

    python onednn_training.py [--graphs]

Op by op, but for the model that is trained without dropout; with --graphs, all
of them in graphs. After a line "one query" it trains an attention of one query.

The number of tokens equals the size of a head: gradients of different operands
then have the same shape, as in tests/onednn_collision.py.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import keras_albert as ka
from keras_albert.training.optimizer import Muon

BATCH, LENGTH, VOCAB = 3, 16, 50


def main(graphs: bool) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(5, VOCAB, (BATCH, LENGTH)).astype("int32")
    label = random.integers(0, 2, BATCH).astype("int32")
    labels = random.integers(0, 2, (BATCH, LENGTH)).astype("int32")
    masked = random.integers(5, VOCAB, (BATCH, 4)).astype("int32")
    position = random.integers(0, LENGTH, BATCH).astype("int32")
    x = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    places = {"masked_positions": np.tile(np.arange(4, dtype="int32"), (3, 1))}
    start = {"start_positions": position}
    span = {"start": position, "end": position}
    classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    odds = keras.losses.BinaryCrossentropy(from_logits=True)

    def text(problem, count, exits=None):
        return lambda backbone: ka.AlbertForSequenceClassification(
            backbone, num_labels=count, problem=problem, exits=exits
        )

    for head, inputs, target, loss in (
        (text("single_label", 2), x, label, classes),
        (text("multi_label", 2), x, labels[:, :2], odds),
        (text("regression", 1), x, label[:, None], "mse"),
        (lambda b: ka.AlbertForTokenClassification(b, 2), x, labels, classes),
        (
            ka.AlbertForMultipleChoice,
            {name: np.stack([value] * 2, 1) for name, value in x.items()},
            label,
            classes,
        ),
        (ka.AlbertForQuestionAnswering, x, span, classes),
        (
            ka.AlbertForQuestionAnsweringV2,
            x | start,
            span | {"answer_class": label[:, None]},
            {"start": classes, "end": classes, "answer_class": odds},
        ),
        (ka.AlbertForTextEmbedding, x, np.zeros((BATCH, 32)), "mse"),
        (
            ka.AlbertForPretraining,
            x | places,
            {"mlm": masked, "sop": label},
            classes,
        ),
        (ka.AlbertForMaskedLM, x | places, masked, classes),
    ):
        model = head(ka.AlbertBackbone(config(0.1, 1)))
        optimizer = Muon() if head is ka.AlbertForPretraining else "sgd"
        run(model, inputs, target, loss, graphs, optimizer)
    deep = config(0.1, 0).replace(num_hidden_layers=3)
    for exits in ("own", "shared", "drawn"):
        for problem, count, target, loss in (
            ("single_label", 2, label, classes),
            ("regression", 1, label[:, None], "mse"),
        ):
            model = text(problem, count, exits)(ka.AlbertBackbone(deep))
            run(model, x, target, loss, graphs)
            one = {name: value[:1] for name, value in x.items()}
            model.train_on_batch(one, target[:1])
            model(x, return_exits=True)
    # Without dropout another code computes attention.
    model = ka.AlbertForSequenceClassification
    run(model(ka.AlbertBackbone(config(0.0, 0)), 2), x, label, classes)
    adapted = ka.AlbertBackbone(config(0.0, 0), dtype="mixed_bfloat16")
    adapted.enable_lora(rank=1)
    run(model(adapted, 2), x, label, classes, graphs)


def config(dropout: float, rank: int) -> ka.AlbertConfig:
    return ka.AlbertConfig(
        vocab_size=VOCAB,
        embedding_size=8,
        hidden_size=2 * LENGTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        relaxed_rank=rank,
    )


def run(model, x, y, loss, in_graph=True, optimizer="sgd") -> None:
    """A step, and predictions for the batch and for one example."""
    model.compile(optimizer, loss, run_eagerly=not in_graph, jit_compile=False)
    model.train_on_batch(x, y)
    x = {name: value for name, value in x.items() if name != "start_positions"}
    model.predict_on_batch(x)
    model.predict_on_batch({name: value[:1] for name, value in x.items()})


def attend_with_one_query() -> None:
    """What this package avoids: test_onednn.py must find it."""
    query = tf.Variable(tf.ones([2, 1, 4, 8]))
    keys = tf.Variable(tf.ones([2, 8, 4, 8]))
    with tf.GradientTape() as tape:
        scores = tf.einsum("btad,bsad->bats", query, keys)
    tape.gradient(scores, [query, keys])


if __name__ == "__main__":
    main("--graphs" in sys.argv)
    print("one query", flush=True)
    attend_with_one_query()
