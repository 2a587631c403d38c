"""The losses of text embeddings, against NumPy, and the models they train."""

import keras
import numpy as np
import pytest
from scipy.special import logsumexp
from small import CONFIG, QUICK, changes, marked, numpy

import keras_albert as ka
from keras_albert.errors import AlbertError
from keras_albert.training.embedding_losses import (
    CosineLoss,
    MultipleNegativesRanking,
)

# Five rows of three texts, whose vectors have six numbers.
VECTORS = np.random.default_rng(0).normal(size=(5, 3, 6)).astype("float32")
NUMBERS = np.arange(15).reshape(5, 3)
# Of which parts are computed: a program for several layers takes longer.
TWO_LAYERS = CONFIG.replace(num_hidden_layers=2)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def value(loss, numbers, vectors, weight=None):
    """The loss of arrays, as a number."""
    weight = None if weight is None else np.array(weight, "float32")
    return float(numpy(loss(numbers, vectors, weight)))


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def ranking(vectors, temperature=0.05, left_out=(), rows=range(5)):
    """The mean loss of `rows`; the pairs (row, text) are no candidates."""
    v = unit(vectors.astype("float64"))
    losses = []
    for i in rows:
        logits = {
            (j, k): v[i, 0] @ v[j, k] / temperature
            for j in rows
            for k in range(1, v.shape[1])
            if (i, (j, k)) not in left_out
        }
        losses.append(logsumexp(list(logits.values())) - logits[i, 1])
    return np.mean(losses)


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_losses_are_float32_whatever_keras_is_told(floatx):
    cosine = CosineLoss("ranking", score_range=(0, 5))
    scores = np.arange(5, dtype="float32")[:, None]
    pairs = VECTORS[:, :2]

    def both():
        ranked = value(MultipleNegativesRanking(), NUMBERS, VECTORS)
        return ranked, value(cosine, scores, pairs)

    expected = both()
    try:
        keras.config.set_floatx(floatx)
        found = both()
    finally:
        keras.config.set_floatx("float32")
    np.testing.assert_allclose(found, expected, **TOLERANCE)


@pytest.mark.any_backend
def test_the_partner_is_found_among_all_texts():
    for temperature in (0.05, 1.0):
        found = value(MultipleNegativesRanking(temperature), NUMBERS, VECTORS)
        expected = ranking(VECTORS, temperature)
        np.testing.assert_allclose(found, expected, **TOLERANCE)
    pairs = VECTORS[:, :2]
    plain = value(MultipleNegativesRanking(), NUMBERS[:, :2], pairs)
    np.testing.assert_allclose(plain, ranking(pairs), **TOLERANCE)
    both = MultipleNegativesRanking(symmetric=True)
    turned = ranking(pairs[:, ::-1])
    np.testing.assert_allclose(
        value(both, NUMBERS[:, :2], pairs),
        (ranking(pairs) + turned) / 2,
        **TOLERANCE,
    )


def test_equal_texts_are_no_negatives():
    """Row 1 has the partner of row 0; row 2's text is row 3's negative."""
    numbers = NUMBERS.copy()
    numbers[1, 1] = numbers[0, 1]
    numbers[3, 2] = numbers[2, 0]
    left_out = {(0, (1, 1)), (1, (0, 1)), (2, (3, 2))}
    found = value(MultipleNegativesRanking(1.0), numbers, VECTORS)
    expected = ranking(VECTORS, 1.0, left_out)
    np.testing.assert_allclose(found, expected, **TOLERANCE)
    assert abs(expected - ranking(VECTORS, 1.0)) > 1e-2
    # Of equal texts, the partners are right for one another.
    numbers = NUMBERS.copy()
    numbers[4, 0] = numbers[1, 0]
    found = value(MultipleNegativesRanking(1.0), numbers, VECTORS)
    expected = ranking(VECTORS, 1.0, {(1, (4, 1)), (4, (1, 1))})
    np.testing.assert_allclose(found, expected, **TOLERANCE)
    # Symmetric: row 1's text is right for row 4's partner, and the reverse.
    pairs, numbers = VECTORS[:, :2], NUMBERS[:, :2].copy()
    numbers[4, 1] = numbers[1, 1]
    both = MultipleNegativesRanking(1.0, symmetric=True)
    left_out = {(1, (4, 1)), (4, (1, 1))}
    there, back = (
        ranking(each, 1.0, left_out) for each in (pairs, pairs[:, ::-1])
    )
    found = value(both, numbers, pairs)
    np.testing.assert_allclose(found, (there + back) / 2, **TOLERANCE)
    # A text may be its own partner: it is found among the others.
    alone = np.stack([np.arange(5)] * 2, axis=1)
    found = value(MultipleNegativesRanking(), alone, VECTORS[:, :2])
    np.testing.assert_allclose(found, ranking(VECTORS[:, :2]), **TOLERANCE)


def test_weights_of_rows_by_hand():
    """The loss is the weighted mean of those of the rows; 0: not there."""
    weight = np.array([0.5, 2, 1, 1, 0])
    there = weight[:4] / weight.sum()
    alone = [
        value(MultipleNegativesRanking(), NUMBERS[:4], VECTORS[:4], each)
        for each in np.eye(4) + 1e-6
    ]  # of one row, among the negatives of all four
    found = value(MultipleNegativesRanking(), NUMBERS, VECTORS, weight)
    np.testing.assert_allclose(found, there @ alone, rtol=1e-4)
    v = unit(VECTORS[:, :2].astype("float64"))
    scores = np.array([1, 3, 2, 5, 4], "float32")
    squares = ((v[:, 0] * v[:, 1]).sum(-1) - scores / 5) ** 2
    found = value(
        CosineLoss("regression", score_range=(0, 5)),
        scores,
        VECTORS[:, :2],
        weight,
    )
    np.testing.assert_allclose(found, there @ squares[:4], **TOLERANCE)


def test_rows_without_weight_are_not_there():
    loss = MultipleNegativesRanking(symmetric=True)
    three = value(loss, NUMBERS[:3], VECTORS[:3])
    found = value(loss, NUMBERS, VECTORS, [1, 1, 1, 0, 0])
    np.testing.assert_allclose(found, three, **TOLERANCE)
    assert value(loss, NUMBERS, VECTORS, [0] * 5) == 0
    loss = CosineLoss()
    scores = np.array([1, 3, 2, 5, 4], "float32")
    pairs = VECTORS[:, :2]
    three = value(loss, scores[:3], pairs[:3])
    found = value(loss, scores, pairs, [1, 1, 1, 0, 0])
    np.testing.assert_allclose(found, three, **TOLERANCE)


def test_matryoshka_is_the_mean_over_sizes():
    for loss, target, vectors in (
        (MultipleNegativesRanking, NUMBERS, VECTORS),
        (CosineLoss, NUMBERS[:, 0], VECTORS[:, :2]),
    ):
        found = value(loss(dimensions=(6, 2)), target, vectors)
        parts = [value(loss(), target, vectors[..., :n]) for n in (6, 2)]
        np.testing.assert_allclose(found, np.mean(parts), **TOLERANCE)
        assert abs(parts[0] - parts[1]) > 1e-3


def test_cosines_of_pairs():
    pairs = VECTORS[:, :2]
    v = unit(pairs.astype("float64"))
    cosines = (v[:, 0] * v[:, 1]).sum(-1)
    scores = np.array([[0.0], [5], [2.5], [2.5], [1]], "float32")
    flat = scores[:, 0]
    gaps = [
        (cosines[j] - cosines[i]) / 0.05
        for i in range(5)
        for j in range(5)
        if flat[i] > flat[j]
    ]
    assert len(gaps) == 9, "two scores are equal"
    np.testing.assert_allclose(
        value(CosineLoss(), scores, pairs), logsumexp([0, *gaps]), **TOLERANCE
    )
    regression = CosineLoss("regression", score_range=(0, 5))
    np.testing.assert_allclose(
        value(regression, scores, pairs),
        np.mean((cosines - flat / 5) ** 2),
        **TOLERANCE,
    )


@pytest.mark.any_backend
def test_bad_arguments():
    for make, words in (
        (lambda: MultipleNegativesRanking(0), "temperature=0"),
        (lambda: MultipleNegativesRanking(symmetric=1), "symmetric.*1"),
        (lambda: CosineLoss("order"), "kind.*'order'"),
        (lambda: CosineLoss(score_range=(5, 0)), r"score_range.*\(5, 0\)"),
        (lambda: CosineLoss(dimensions=(0,)), "dimensions=0"),
        (lambda: MultipleNegativesRanking(dimensions=(2, 2)), "differ.*2, 2"),
        (
            lambda: MultipleNegativesRanking()(NUMBERS[:, :1], VECTORS[:, :1]),
            r"texts of a row.*\(5, 1, 6\)",
        ),
        *(
            (
                lambda numbers=numbers: MultipleNegativesRanking()(
                    numbers, VECTORS
                ),
                r"labels of the shape \(5, 3\)\. Received: \(5,",
            )
            for numbers in (NUMBERS[:, 0], NUMBERS[:, :1], NUMBERS[:, :2])
        ),
        (
            lambda: CosineLoss()(NUMBERS[:, 0], VECTORS),
            r"texts of a row.*\(5, 3, 6\)",
        ),
    ):
        with pytest.raises(AlbertError, match=words):
            make()
    for loss in (
        MultipleNegativesRanking(0.1, True, (4, 2)),
        CosineLoss("regression", 0.1, (0, 5), (4,)),
    ):
        again = type(loss).from_config(loss.get_config())
        assert again.get_config() == loss.get_config()


def trained(rows_at_once, pooling):
    """The loss, and the change of the weights in a step."""
    keras.utils.set_random_seed(1)
    model = ka.AlbertForTextEmbedding(
        ka.AlbertBackbone(TWO_LAYERS), pooling, projection=5
    )
    model.rows_at_once = rows_at_once
    # In a graph where every backend does it.
    eagerly = QUICK["run_eagerly"] and pooling != "mean"
    model.compile(
        keras.optimizers.SGD(1.0),
        MultipleNegativesRanking(1.0),
        run_eagerly=eagerly,
    )
    ids = np.random.default_rng(0).integers(5, CONFIG.vocab_size, (6, 2, 8))
    x = {"token_ids": ids.astype("int32")}
    numbers = np.arange(12).reshape(6, 2)
    return changes(model, lambda: model.train_on_batch(x, numbers))


@pytest.mark.parametrize(
    "pooling",
    [
        "mean",
        *marked(
            "any_backend", "max", "cls", "weighted_layers", "idf_first_last"
        ),
    ],
)
def test_gradients_in_parts(pooling):
    """Twelve texts, five at a time, have the gradient of all at once."""
    loss, whole = trained(None, pooling)
    other, parts = trained(5, pooling)
    np.testing.assert_allclose(other, loss, **TOLERANCE)
    assert max(np.abs(each).max() for each in whole) > 1e-3
    for part, each in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part, each, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a graph of TensorFlow"
)
def test_a_graph_does_not_grow_with_the_parts():
    """And it takes texts of any length."""
    import tensorflow as tf

    model = ka.AlbertForTextEmbedding(ka.AlbertBackbone(TWO_LAYERS))
    ids = np.random.default_rng(0).integers(5, CONFIG.vocab_size, (8, 6))

    def operations(rows_at_once):
        model.rows_at_once = rows_at_once
        step = tf.function(
            lambda ids: model({"token_ids": ids}, training=True),
            input_signature=[tf.TensorSpec((8, None), "int32")],
        )
        found = step(tf.constant(ids, "int32"))
        np.testing.assert_allclose(
            found, model({"token_ids": ids}), **TOLERANCE
        )
        return len(step.get_concrete_function().graph.get_operations())

    assert operations(1) == operations(3)
    model.compile("adam", "mse")
    with pytest.raises(AlbertError, match="batches of one size"):
        model.fit({"token_ids": ids}, np.zeros((8, model.size)), batch_size=6)
    assert model.supports_jit is False
    model.rows_at_once = None
    assert model.supports_jit


def test_parts_compute_what_a_precision_says():
    """The projection has float32, and not the bfloat16 around it."""
    model = ka.AlbertForTextEmbedding(
        ka.AlbertBackbone(TWO_LAYERS, dtype="mixed_bfloat16"), projection=5
    )
    x = {"token_ids": np.arange(5, 17).reshape(3, 4)}
    expected = numpy(model(x, training=True))
    model.rows_at_once = 3  # all: bfloat16 may round other batches otherwise
    found = numpy(model(x, training=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_parts_draw_masks_of_their_own():
    """All texts are equal: so are their vectors, but for the masks."""
    config = TWO_LAYERS.replace(hidden_dropout_prob=0.5)
    model = ka.AlbertForTextEmbedding(ka.AlbertBackbone(config))
    model.rows_at_once = 2
    x = {"token_ids": np.full((6, 8), 7)}
    first, second = (numpy(model(x, training=True)) for _ in range(2))
    vectors = np.concatenate([first, second])
    differences = np.abs(vectors[:, None] - vectors[None]).max(-1)
    assert differences[~np.eye(12, dtype=bool)].min() > 1e-3
    still = numpy(model(x))
    np.testing.assert_allclose(still, still[:1].repeat(6, 0), atol=1e-5)


def test_scores_that_do_not_begin_at_zero():
    """From -1 to 4, each one less than from 0 to 5: the same loss."""
    scores = np.array([0, 5, 2.5, 2.5, 1], "float32")
    losses = [
        value(
            CosineLoss("regression", score_range=(lowest, lowest + 5)),
            scores + lowest,
            VECTORS[:, :2],
        )
        for lowest in (0, -1)
    ]
    np.testing.assert_allclose(losses[1], losses[0], **TOLERANCE)


def test_a_pair_without_weight_is_neither_higher_nor_lower():
    pairs = VECTORS[:, :2]
    for scores in ([1, 3, 2, 5, 4], [4, 3, 5, 1, 2]):
        scores = np.array(scores, "float32")
        three = value(CosineLoss(), scores[:3], pairs[:3])
        found = value(CosineLoss(), scores, pairs, [1, 1, 1, 0, 0])
        np.testing.assert_allclose(found, three, **TOLERANCE)
