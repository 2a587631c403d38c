"""The linear model of words, beside which every score of texts stands."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from keras_albert.data.tables import Table
from keras_albert.tasks import bag_of_words
from keras_albert.tasks.bag_of_words import (
    MOST_CHARACTERS,
    fit_classes,
    fit_number,
    fit_several,
    linear_outputs,
)
from keras_albert.tasks.labels import LABEL
from keras_albert.tasks.registry import ALL_TASKS

pytestmark = pytest.mark.any_backend

ANIMALS = np.array(["ant", "bee", "cow", "doe", "elk", "fox"])
GOOD = [f"a good film {i}" for i in range(20)]
BAD = [f"not a film {i}" for i in range(20)]


def test_words_give_the_label_away():
    """Of three labels the second has no example, and is never predicted."""
    target = np.array([0] * 20 + [2] * 20)
    outputs = linear_outputs(
        lambda x, y: fit_classes(x, y, 3),
        [GOOD + BAD],
        target,
        [["good indeed", "not at all"]],
    )
    assert outputs.shape == (2, 3)
    np.testing.assert_array_equal(outputs.argmax(1), [0, 2])
    np.testing.assert_allclose(np.exp(outputs).sum(1), 1)
    only = linear_outputs(
        lambda x, y: fit_classes(x, y, 3), [GOOD], target[:20], [["x", "y"]]
    )
    np.testing.assert_array_equal(only.argmax(1), [0, 0])


def test_pairs_are_compared():
    """No word tells whether two texts are equal; their product does."""
    rng = np.random.default_rng(0)
    first = rng.choice(ANIMALS, (300, 3))
    is_same = rng.integers(2, size=300)
    second = np.where(is_same[:, None], first, rng.choice(ANIMALS, (300, 3)))
    texts = [[" ".join(row) for row in side] for side in (first, second)]
    train, held_out = (
        [side[part] for side in texts] for part in (slice(200), slice(200, 300))
    )
    outputs = linear_outputs(
        lambda x, y: fit_classes(x, y, 2), train, is_same[:200], held_out
    )
    assert (outputs.argmax(1) == is_same[200:]).mean() > 0.95
    shared = np.array(
        [len(set(a) & set(b)) for a, b in zip(first, second, strict=True)]
    )
    target = shared[:200, None].astype("float32")
    numbers = linear_outputs(fit_number, train, target, held_out)
    assert numbers.shape == (100, 1)
    assert stats.pearsonr(numbers[:, 0], shared[200:])[0] > 0.85


def test_several_labels():
    """The second label never occurs, so its logit is that of "no"."""
    target = np.array([[1, 0, 1]] * 20 + [[0, 0, 1]] * 20, "float32")
    outputs = linear_outputs(
        fit_several, [GOOD + BAD], target, [["good", "not"]]
    )
    np.testing.assert_array_equal(outputs > 0, [[1, 0, 1], [0, 0, 1]])
    without_words = [["?!", ""]]
    ones = np.ones((2, 1))
    assert linear_outputs(fit_several, without_words, ones, [["a"]]) is None


@pytest.mark.parametrize("where", ["text", "question"])
def test_choices_that_are_named(where):
    """The right choice is the animal of the text, or of the question."""
    rng = np.random.default_rng(0)
    chosen = np.array([rng.permutation(ANIMALS)[:3] for _ in range(300)])
    right = rng.integers(3, size=300)
    values = {"text": ["I saw it."] * 300, "question": ["What was it?"] * 300}
    values[where] = [f"I saw the {a}." for a in chosen[np.arange(300), right]]
    values |= {"choices": [list(row) for row in chosen], LABEL: right.tolist()}
    path, lines = Path("table.jsonl"), list(range(300))
    table = Table(path, values, rows=[{}] * 300, lines=lines)
    held_out = table.take(np.arange(200, 300))
    outputs = ALL_TASKS["choice"].linear_outputs(
        table.take(np.arange(200)), held_out, None
    )
    assert outputs.shape == (100, 3)
    assert (outputs.argmax(1) == right[200:]).mean() > 0.95


def test_large_tables_are_sampled(monkeypatch):
    texts = GOOD + BAD
    quarter = sum(map(len, texts)) // 4
    assert quarter < MOST_CHARACTERS
    name = "keras_albert.tasks.bag_of_words.MOST_CHARACTERS"
    monkeypatch.setattr(name, quarter)
    seen = []

    def fit(features, target):
        seen.append(target)
        return lambda rows: rows

    linear_outputs(fit, [texts], np.arange(40), [["a"]])
    assert len(seen[0]) == 10 and {0, 39} <= set(seen[0].tolist())


def test_the_linear_model_has_a_largest_size(monkeypatch):
    """Its memory would grow with words and labels."""
    monkeypatch.setattr(bag_of_words, "MOST_WEIGHTS", 3)
    sizes = []

    def fit(features, target):
        sizes.append(features.shape[1])
        return lambda held_out: np.zeros((held_out.shape[0], 2))

    texts = [["one two three four five", "six seven eight nine ten"]]
    bag_of_words.linear_outputs(fit, texts, np.array([0, 1]), texts)
    assert 1 <= sizes[0] <= 3
