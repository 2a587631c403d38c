"""Functions that tasks share which choose one of several classes.

Letters: N examples or words, C classes.
"""

from collections.abc import Sequence

import keras
import numpy as np
from scipy import special

from keras_albert.tasks.metrics import collapsed
from keras_albert.training.losses import WeightedMean


def class_loss() -> keras.losses.Loss:
    """Cross-entropy of logits [..., C] and class indices."""
    loss = keras.losses.SparseCategoricalCrossentropy
    return WeightedMean(loss(from_logits=True, reduction="none"))


def decision_loss() -> keras.losses.Loss:
    """Cross-entropy of logits [..., C] and decisions, 0 or 1 [..., C]."""
    loss = keras.losses.BinaryCrossentropy
    return WeightedMean(loss(from_logits=True, reduction="none"))


def probabilities_of_wrong(
    logits: np.ndarray, target: np.ndarray, predicted: np.ndarray
) -> np.ndarray:
    """The probability of each prediction that is wrong, else 0: [N].

    `logits` are [N, C], `target` and `predicted` class indices [N].
    """
    probabilities = special.softmax(logits, axis=-1)
    probabilities = np.take_along_axis(
        probabilities, predicted[:, None], axis=-1
    )[:, 0]
    return np.where(predicted != target, probabilities, 0)


def share_of_most_frequent(target: np.ndarray) -> float:
    """The accuracy of always predicting the most frequent class."""
    counts = np.bincount(target)
    return float(counts.max() / counts.sum())


def collapse(
    expected: np.ndarray, predicted: np.ndarray, names: Sequence[str], what: str
) -> tuple[str, ...]:
    """A remark if the model predicts the same class for everything.

    `expected` and `predicted` are class indices [N], `names` the names of the
    classes; `what` is classified: an example, a word or a question.
    """
    if len(set(predicted.tolist())) > 1 or len(set(expected.tolist())) == 1:
        return ()
    return (collapsed(f"{what} is taken for {names[predicted[0]]!r}"),)
