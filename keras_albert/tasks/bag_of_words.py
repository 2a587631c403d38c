"""A baseline without a neural network: counts of words in a linear model.

A model that is not better has learned nothing from the order of words.

Letters: N examples, F words and pairs of neighbouring words.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import sparse

from keras_albert.data.tables import evenly_spaced

MOST_CHARACTERS = 30_000_000  # of the training texts; more take minutes
# Most weights of the linear model; fitting takes about 165 bytes of memory for
# each. Where words and classes would need more, only the most frequent words
# count.
MOST_WEIGHTS = 5_000_000
Texts = Sequence[Sequence[str]]  # a column of texts, or two for pairs


def linear_outputs(
    fit: Callable, train: Texts, target: np.ndarray, held_out: Texts
) -> np.ndarray | None:
    """The outputs of a linear model for held-out texts.

    Its features are TF-IDF weights of words and of pairs of neighbouring words;
    for pairs the weights' differences and products, and their cosine.

    `fit` is a function from the features, a sparse matrix [N, F], and the
    targets, [N] or [N, C], to a function from features to outputs. It learns
    from an even sample of `train`, if the texts together have more than
    MOST_CHARACTERS. Returns one row of outputs for each held-out text; None if
    the training texts have no word.
    """
    chosen = _sample(train, len(target))
    train = [[column[i] for i in chosen] for column in train]
    target = target[chosen]
    # Two classes have one weight a feature; each of several labels is apart.
    classes = 1 if target.ndim > 1 else max(len(np.unique(target)) - 1, 1)
    words = _weights(train, max(MOST_WEIGHTS // classes, 1))
    if words is None:
        return None

    def features(columns: Texts) -> sparse.csr_matrix:
        first, *second = (words.transform(column) for column in columns)
        if not second:
            return first
        products = first.multiply(second[0])
        parts = [products.sum(axis=1), products, abs(first - second[0])]
        return sparse.hstack([sparse.csr_matrix(part) for part in parts], "csr")

    predict = fit(features(train), target)
    return predict(features(held_out))


def vectors(train: Texts, held_out: Texts) -> list[sparse.csr_matrix] | None:
    """TF-IDF vectors [N, F], of length 1, of each column of held-out texts.

    The frequencies of words are those of `train`; None if it has no word.
    """
    chosen = _sample(train, len(train[0]))
    train = [[column[i] for i in chosen] for column in train]
    words = _weights(train, MOST_WEIGHTS)
    return words and [words.transform(column) for column in held_out]


def _sample(columns: Texts, rows: int) -> np.ndarray:
    """The rows to learn from, evenly spread, of MOST_CHARACTERS at most."""
    length = sum(len(text) for column in columns for text in column)
    count = -(-rows * MOST_CHARACTERS // max(length, 1))
    return evenly_spaced(rows, count)


def _weights(columns: Texts, most: int):
    """A fitted TfidfVectorizer of `most` features; None if there is no word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        token_pattern=r"(?u)\b\w+\b",
        max_features=most,
    )
    try:
        return words.fit([text for column in columns for text in column])
    except ValueError:  # "empty vocabulary"
        return None


def fit_classes(features, target: np.ndarray, count: int) -> Callable:
    """Logistic regression of one label; outputs are log-probabilities [N, C].

    `count` is C. A label that no training example has is impossible.
    """
    from sklearn.linear_model import LogisticRegression

    known = np.unique(target)
    if len(known) == 1:
        return lambda rows: (
            np.where(np.arange(count) == known[0], 0.0, -np.inf)
            + np.zeros((rows.shape[0], 1))
        )
    model = LogisticRegression(max_iter=1000).fit(features, target)

    def predict(rows):
        outputs = np.full((rows.shape[0], count), -np.inf)
        outputs[:, model.classes_] = model.predict_log_proba(rows)
        return outputs

    return predict


def fit_several(features, target: np.ndarray) -> Callable:
    """A logistic regression for each label; outputs are logits [N, C]."""
    each = [fit_classes(features, column, 2) for column in target.T.astype(int)]

    def predict(rows):
        columns = [model(rows) for model in each]
        return np.stack([c[:, 1] - c[:, 0] for c in columns], axis=1)

    return predict


def fit_number(features, target: np.ndarray) -> Callable:
    """Ridge regression; outputs are [N, 1]."""
    from sklearn.linear_model import Ridge

    model = Ridge().fit(features, target[:, 0])
    return lambda rows: model.predict(rows)[:, None]
