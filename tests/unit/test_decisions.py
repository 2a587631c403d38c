"""Thresholds, temperatures, calibration errors: by hand, and scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import f1_score

from keras_albert.errors import AlbertError
from keras_albert.tasks.decisions import (
    best_threshold,
    best_thresholds,
    calibrated,
    calibration_error,
    checked_threshold,
    chosen_class,
    chosen_labels,
    pooled_logits,
    temperature_of,
)

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("probabilities", "expected", "threshold"),
    [
        # F1 of the first 1, 2, 3, 4: 2/3, 1, 4/5, 2/3; halfway to the third.
        ([0.9, 0.3, 0.2, 0.1], [1, 1, 0, 0], 0.25),
        # 0.5 is as good as halfway between 0.9 and 0.2.
        ([0.9, 0.2], [1, 0], 0.5),
        # Both are 0.9, or neither: of them 2/3, of all 4/5.
        ([0.9, 0.9, 0.2], [1, 0, 1], 0.1),
        # 2/3 above 0.85 and above 0.2, which is closer to 0.5.
        ([0.9, 0.8, 0.6, 0.4], [1, 0, 0, 1], 0.2),
        # All have the label, whatever the probability.
        ([0.4, 0.2], [1, 1], 0.1),
        # No example has it, and nothing can be learned.
        ([0.9, 0.6], [0, 0], 0.5),
    ],
)
def test_best_threshold_by_hand(probabilities, expected, threshold):
    assert best_threshold(
        np.array(probabilities), np.array(expected)
    ) == pytest.approx(threshold)


@given(
    st.lists(
        st.tuples(st.sampled_from(np.linspace(0.01, 0.99, 30)), st.booleans()),
        min_size=1,
        max_size=20,
    )
)
def test_no_threshold_is_better(rows):
    """F1 is that of scikit-learn, at every threshold that differs."""
    probabilities, expected = map(np.array, zip(*rows, strict=True))
    found = best_threshold(probabilities, expected)

    def f1(threshold):
        return f1_score(expected, probabilities > threshold, zero_division=0)

    best = max(f1(threshold) for threshold in [0, 0.5, *probabilities])
    assert f1(found) == pytest.approx(best)
    assert found == 0.5 or f1(found) > f1(0.5)


def test_decisions():
    """The second of two labels, and each of several, above its own."""
    # softmax of [0, x] has the probability expit(x) of the second label
    logits = np.log([[1, 0.25], [1, 0.5], [1, 2.0]])  # 0.2, 0.333, 0.667
    assert chosen_class(logits).tolist() == [0, 0, 1]
    assert chosen_class(logits, (0.3,)).tolist() == [0, 1, 1]
    assert chosen_class(logits, (0.7,)).tolist() == [0, 0, 0]
    logits = np.log([[1.0, 2.0], [3.0, 0.5]])  # 0.5, 0.667; 0.75, 0.333
    assert chosen_labels(logits).tolist() == [[False, True], [True, False]]
    several = chosen_labels(logits, (0.8, 0.3))
    assert several.tolist() == [[False, True], [False, True]]
    target = np.array([[0, 1], [1, 1]])
    # Of the first label halfway; of the second one below both.
    assert best_thresholds(logits, target) == pytest.approx((0.5, 1 / 6))


@pytest.mark.parametrize(
    ("given", "count", "message"),
    [
        ("high", 1, "must be 1 number. Received: 'high'"),
        ([0.5], 2, "must be 2 numbers. Received: .0.5."),
        ([0.5, math.nan], 2, "must be 2 numbers"),
        (0.0, 1, "above 0 and below 1. Received: 0.0"),
        (1.0, 1, "above 0 and below 1. Received: 1.0"),
    ],
)
def test_what_is_no_threshold(given, count, message):
    with pytest.raises(AlbertError, match=message):
        checked_threshold(given, count)
    assert checked_threshold(0.3, 1) == (0.3,)


def test_logits_of_windows_by_hand():
    """Probabilities are averaged, or the highest logits are taken."""
    windows = np.log([[0.8, 0.2], [0.4, 0.6]]) + [[5.0], [-5.0]]
    mean = pooled_logits(windows, "mean", "single_label")
    assert np.exp(mean) == pytest.approx([0.6, 0.4])
    highest = [math.log(0.8) + 5, math.log(0.2) + 5]
    for problem in ("single_label", "multi_label", "regression"):
        found = pooled_logits(windows, "max", problem)
        assert found == pytest.approx(highest)
        alone = pooled_logits(windows[:1], "mean", problem)
        assert (alone == windows[0]).all()
    probabilities = np.array([[0.9, 0.1, 0.5], [0.3, 0.3, 0.5]])
    mean = pooled_logits(
        np.log(probabilities / (1 - probabilities)), "mean", "multi_label"
    )
    assert 1 / (1 + np.exp(-mean)) == pytest.approx([0.6, 0.2, 0.5])
    number = pooled_logits(np.array([[1.0], [4.0]]), "mean", "regression")
    assert number.tolist() == [2.5]


def sure(share, logit, count=100):
    """Logits [N, 2] of one class, which is right for a share of N examples."""
    logits = np.tile([logit, 0.0], (count, 1))
    return logits, (np.arange(count) >= round(share * count)).astype(int)


def test_temperature_by_hand():
    """The probability becomes the share of right predictions."""
    # softmax([5 / T, 0])[0] == 0.8 where 5 / T == log(0.8 / 0.2)
    logits, target = sure(0.8, 5.0)
    assert temperature_of(logits, target) == pytest.approx(5 / math.log(4))
    assert temperature_of(*sure(1.0, 5.0)) == 1  # no mistake to learn from
    # It would be 43 and 0.04, and is at most 10 and at least 0.1.
    for logit, limit in ((60.0, 10), (0.05, 0.1)):
        found = temperature_of(*sure(0.8, logit))
        assert found == pytest.approx(limit, rel=1e-3)


def test_calibration_error_by_hand():
    """Of three bins: 0.02 of 4 examples, 0.3 of 4, and 0 of 2."""

    def logits(probabilities):
        return np.log([probabilities, 1 - probabilities]).T

    probabilities = np.array([0.98] * 4 + [0.7, 0.68, 0.71, 0.71] + [0.5] * 2)
    # Right are all of the first, 1 of the second, 1 of the third.
    target = np.array([0] * 4 + [0, 1, 1, 1] + [0, 1])
    expected = (4 * 0.02 + 4 * (0.7 - 0.25) + 0) / 10
    assert calibration_error(logits(probabilities), target) == pytest.approx(
        expected
    )
    # 0.8 is 12 / 15, the upper end of the bin that 0.75 is in.
    one_bin = np.log([[4.0, 1.0], [3.0, 1.0]])
    error = calibration_error(one_bin, np.array([0, 1]))
    assert error == pytest.approx((0.75 - 0.2) / 2)


def test_each_half_has_the_temperature_of_the_other():
    """The error after is not measured on what chose the temperature."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    target = (probabilities.cumsum(1) < rng.random((400, 1))).sum(1)
    found = calibrated(3 * logits, target, seed=1)
    assert found.temperature == pytest.approx(3, rel=0.15)
    assert found.error_after < 0.06 < 0.2 < found.error_before
    one, other = np.array_split(np.random.default_rng(1).permutation(400), 2)
    crossed = 3 * logits
    crossed[one] /= temperature_of(3 * logits[other], target[other])
    crossed[other] /= temperature_of(3 * logits[one], target[one])
    assert found.error_after == calibration_error(crossed, target)
    fitted = calibration_error(3 * logits / found.temperature, target)
    assert found.error_fitted == fitted != found.error_after


def test_a_probability_at_the_threshold_is_not_above_it():
    assert chosen_class(np.zeros((1, 2)), (0.5,)).tolist() == [0]
