"""From the logits of a classifier to its decisions: thresholds, calibration.

Letters: N examples, C labels, T thresholds: 1 for one of two labels, C for
several labels an example.
"""

import dataclasses

import numpy as np
from scipy import optimize, special

from keras_albert.errors import AlbertError, is_number

DEFAULT_THRESHOLD = 0.5  # the threshold of a decision that was not tuned
BINS = 15  # of the calibration error, as in Guo et al. 2017
# lowest and highest temperature
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 10.0

Threshold = tuple[float, ...]  # T probabilities


def pooled_logits(logits: np.ndarray, pooling: str, problem: str) -> np.ndarray:
    """The logits of a text [C], from those of its W windows [W, C].

    With "mean", their probabilities are the mean of the windows' (a number is
    the mean of the windows' numbers); with "max", each logit is the highest of
    the windows'.
    `problem` is that of `AlbertForSequenceClassification`.
    """
    if len(logits) == 1:
        return logits[0]
    if pooling == "max":
        return logits.max(axis=0)
    if problem == "regression":
        return logits.mean(axis=0)
    if problem == "multi_label":
        yes, no = special.log_expit(logits), special.log_expit(-logits)
        return special.logsumexp(yes, axis=0) - special.logsumexp(no, axis=0)
    each = special.log_softmax(logits, axis=-1)
    return special.logsumexp(each, axis=0) - np.log(len(each), dtype=each.dtype)


def checked_threshold(given: object, count: int) -> Threshold:
    """`given`, a number or a list of numbers, as `count` thresholds.

    Raises AlbertError unless there are so many, each above 0 and below 1.
    """
    given = np.asarray(given).tolist() if hasattr(given, "dtype") else given
    values = given if isinstance(given, list | tuple) else [given]
    if len(values) != count or not all(is_number(v) for v in values):
        raise AlbertError(
            f"`threshold` must be {count} number{'s'[: count > 1]}. Received: "
            f"{given!r:.80}."
        )
    if not all(0 < value < 1 for value in values):
        raise AlbertError(
            "`threshold` must be a probability above 0 and below 1. "
            f"Received: {given!r:.80}."
        )
    return tuple(map(float, values))


def chosen_class(
    logits: np.ndarray, threshold: Threshold | None = None
) -> np.ndarray:
    """The index of the predicted label: int [N], from logits [N, C].

    It is the most probable one. With a threshold, it is the second of two
    labels if its probability is above the threshold, else the first.
    """
    if threshold is None:
        return logits.argmax(axis=-1)
    second = special.softmax(logits, axis=-1)[:, 1]
    return (second.astype("float64") > threshold[0]).astype(int)


def chosen_labels(
    logits: np.ndarray, threshold: Threshold | None = None
) -> np.ndarray:
    """Whether each label is predicted: bool [N, C], from logits [N, C]."""
    limits = np.array(DEFAULT_THRESHOLD if threshold is None else threshold)
    return special.expit(logits).astype("float64") > limits


def best_threshold(probabilities: np.ndarray, expected: np.ndarray) -> float:
    """The threshold of a probability with the best F1.

    A threshold is halfway between two neighbouring probabilities, so that a
    device that rounds differently decides alike. Of several with the same F1 it
    is the one closest to DEFAULT_THRESHOLD, and the default itself if no other
    is better. It is the default, too, if no example has the label, since every
    F1 is then 0.

    Args:
        probabilities: float [N], of the label.
        expected: bool [N], whether an example has the label.
    """
    probabilities = np.asarray(probabilities, "float64")
    order = np.argsort(-probabilities, kind="stable")
    surest_first = probabilities[order]
    hits = np.cumsum(np.asarray(expected, bool)[order])
    if not hits[-1]:
        return DEFAULT_THRESHOLD
    # F1 of predicting the label for the first 1, 2, ..., N examples
    f1 = 2 * hits / (np.arange(1, len(surest_first) + 1) + hits[-1])
    between = (surest_first + np.append(surest_first[1:], 0.0)) / 2
    # Examples with the same probability are all above a threshold, or none is.
    may_be = (between < surest_first) & (
        between > np.append(surest_first[1:], 0.0)
    )
    above = int((surest_first > DEFAULT_THRESHOLD).sum())
    best = f1[may_be].max(initial=0.0)
    if not best or (above and f1[above - 1] >= best):
        return DEFAULT_THRESHOLD
    values = between[may_be & (f1 == best)]
    return float(values[np.abs(values - DEFAULT_THRESHOLD).argmin()])


def best_thresholds(logits: np.ndarray, target: np.ndarray) -> Threshold:
    """The threshold of each label with that label's best F1.

    `logits` are [N, C], `target` is 0 or 1 [N, C].
    """
    columns = zip(special.expit(logits).T, target.T == 1, strict=True)
    return tuple(best_threshold(*column) for column in columns)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The effect of temperature scaling on probabilities (Guo et al. 2017)."""

    temperature: float
    """what logits are divided by: above 1, probabilities of predictions fall"""
    error_before: float
    """expected calibration error without it"""
    error_after: float
    """expected calibration error of all examples, those of each half with the
    temperature of the other half"""
    error_fitted: float
    """expected calibration error on the examples that it was fitted on"""


def calibrated(
    logits: np.ndarray, target: np.ndarray, seed: int
) -> Calibration:
    """Chooses the temperature, and measures it on examples not used for it.

    `logits` are [N, C], `target` class indices [N], and `seed` divides the
    examples into two halves.
    """
    logits = np.asarray(logits, "float64")
    order = np.random.default_rng(seed).permutation(len(logits))
    halves = np.array_split(order, 2)
    crossed = np.empty_like(logits)
    for one, other in (halves, halves[::-1]):
        fitted = temperature_of(logits[other], target[other])
        crossed[one] = logits[one] / fitted
    temperature = temperature_of(logits, target)
    return Calibration(
        temperature,
        calibration_error(logits, target),
        calibration_error(crossed, target),
        calibration_error(logits / temperature, target),
    )


def temperature_of(logits: np.ndarray, target: np.ndarray) -> float:
    """The temperature with the lowest cross-entropy.

    It is between MIN_TEMPERATURE and MAX_TEMPERATURE.
    It is 1 if every example is right: the lowest cross-entropy is then that of
    a temperature of 0, which makes every probability 0 or 1.

    `logits` are [N, C], `target` class indices [N].
    """
    if (logits.argmax(axis=-1) == target).all():
        return 1.0
    own = np.take_along_axis(logits, target[:, None], axis=-1)[:, 0]

    # It has one minimum: it is convex in 1 / temperature.
    def cross_entropy(log_temperature):
        scale = np.exp(-log_temperature)
        normalizers = special.logsumexp(scale * logits, axis=-1)
        return np.mean(normalizers - scale * own)

    found = optimize.minimize_scalar(
        cross_entropy,
        bounds=(np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE)),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return float(np.exp(found.x))


def calibration_error(logits: np.ndarray, target: np.ndarray) -> float:
    """How far probabilities are from the share of right predictions.

    The expected calibration error: examples are put into BINS bins of equal
    width by the probability of the most probable label. It is the mean over all
    examples of the difference, in their bin, between the mean probability and
    the accuracy (Guo et al. 2017, equation 3).
    """
    probabilities = special.softmax(np.asarray(logits, "float64"), axis=-1)
    surest = probabilities.max(axis=-1)
    right = probabilities.argmax(axis=-1) == target
    # As in the paper, a bin contains its upper end and not its lower one.
    bins = np.clip(np.ceil(surest * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=surest - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(surest))
