"""Masking, with answers known by hand."""

import numpy as np
import pytest
from reference_examples import rows_of

from keras_albert.pretraining import masking
from keras_albert.pretraining.config import ExampleConfig

pytestmark = pytest.mark.any_backend

MASK = 4
WORD_STARTS = np.ones(101, bool)


def test_the_budget_rounds_as_the_reference():
    examples = ExampleConfig(masked_lm_prob=0.5)
    tokens = np.array([25, 27, 3, 100, 1])  # Python: round(12.5) is 12
    found = masking.budgets(tokens, examples).numpy()
    assert found.tolist() == [12, 14, 2, 20, 1]


def test_ngram_lengths_follow_the_paper():
    """p(n) = (1/n) / sum(1/k): 6/11, 3/11, 2/11; at the end what is left."""
    count, words = 4000, 40
    rows = rows_of([(list(range(5, 5 + words)), [])] * count, 64, 0)
    examples = ExampleConfig(sequence_length=64)
    length = rows.lengths[:, 0]
    edges, num_words = masking.find_words(
        rows.text, length, length, WORD_STARTS, examples
    )
    assert num_words.numpy().tolist() == [words] * count
    visits = masking.draw_visits(rows.keys, num_words, 62)
    starts, ends = masking.choose_ngrams(
        visits, num_words, edges, length, length, length * 0 + 3, examples
    )
    first, size = starts.numpy()[:, 0], (ends - starts).numpy()[:, 0]
    inside = size[first < words - 2]
    share = np.bincount(inside, minlength=4) / len(inside)
    np.testing.assert_allclose(
        share, [0, 6 / 11, 3 / 11, 2 / 11], atol=4 * 0.5 / len(inside) ** 0.5
    )
    assert set(size[first == words - 1]) == {1}
    two = size[first == words - 2]
    assert set(two) == {1, 2}
    assert abs((two == 2).mean() - 5 / 11) < 4 * 0.5 / len(two) ** 0.5


def test_order_of_visits():
    rows = rows_of([([10] * 5, []), ([10] * 9, [])] * 500, 13, 0)
    visits = masking.draw_visits(rows.keys, np.array([5, 9] * 500), 11).numpy()
    assert (visits[::2, 5:] == -1).all() and (visits[1::2, 9:] == -1).all()
    visits = -np.sort(-visits)
    words = visits % 2**16
    assert (np.sort(words[::2, :5]) == np.arange(5)).all()
    assert (np.sort(words[1::2, :9]) == np.arange(9)).all()
    # Every word is first equally often; and every n is as likely anywhere.
    first = np.bincount(words[::2, 0], minlength=5)
    assert np.abs(first - 100).max() < 5 * 10
    numbers = (visits[1::2, :9] >> 16 & 2**20 - 1) / 2**20
    assert np.abs(numbers.mean(0) - 0.5).max() < 5 * 0.29 / 500**0.5


def test_what_masked_tokens_become():
    examples = ExampleConfig(64, 40, masked_lm_prob=0.95, ngram=1)
    rows = rows_of([([10] * 40, [])] * 500, 64, 0)
    x, _, weight = masking.build_batch(rows, WORD_STARTS, examples)
    assert weight["mlm"].numpy().sum() == 20_000
    seen = x["token_ids"].numpy()[:, 1:41].ravel()
    tolerance = 4 * 0.5 / len(seen) ** 0.5
    # 80 %, and 1 in 101 of the random tenth is [MASK] or 10 itself
    assert abs((seen == MASK).mean() - 0.801) < tolerance
    assert abs((seen == 10).mean() - 0.101) < tolerance
    rest = seen[(seen != MASK) & (seen != 10)]
    assert len(np.unique(rest)) == 99  # all others, special pieces included
