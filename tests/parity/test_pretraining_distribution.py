"""Masking against 40 instances made by the original ALBERT code.

They are 8 pieces of text, masked 5 times each with independent chance, so
counts of predictions and word boundaries must be equal, while shares can only
be compared as samples. Each tolerance is 4 standard deviations of the same
statistic over 40 instances, measured on 200 of our own maskings of the same 40
texts: wide enough that a right implementation passes, and narrow enough that
p(n) turned round (2/11, 3/11, 6/11) fails in the last test.
"""

import json

import numpy as np
import pytest

from keras_albert.config import CLS_ID, MASK_ID, SEP_ID, ExampleConfig
from keras_albert.data import pretraining
from keras_albert.data.pretraining import mask_tokens
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend

CONFIG = ExampleConfig(sequence_length=128)  # as the instances were made
REPEATS = 200


@pytest.fixture(scope="module")
def tokenizer(data_folder):
    return Tokenizer(data_folder / "vocab" / "30k-clean.model")


@pytest.fixture(scope="module")
def instances(data_folder, tokenizer):
    """(tokens before masking, masked tokens, positions, word boundaries)."""
    path = data_folder / "golden" / "pretraining_instances.jsonl"
    result = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        positions = np.array(row["masked_lm_positions"])
        masked = ids_of(tokenizer, row["tokens"])
        tokens = masked.copy()
        tokens[positions] = ids_of(tokenizer, row["masked_lm_labels"])
        result.append(
            (tokens, masked, positions, np.array(row["token_boundary"]))
        )
    assert len(result) == 40
    return result


def ids_of(tokenizer, pieces):
    return np.array([tokenizer.piece_to_id(piece) for piece in pieces])


@pytest.fixture(scope="module")
def ours(instances, tokenizer):
    """Positions of `REPEATS` maskings of every instance."""
    return [sample(instances, tokenizer, seed) for seed in range(REPEATS)]


def sample(instances, tokenizer, seed):
    rng = np.random.default_rng(seed)
    return [
        mask_tokens(
            tokens, tokenizer.word_starts, CONFIG, tokenizer.vocab_size, rng
        )[1]
        for tokens, *_ in instances
    ]


def word_numbers(tokens, boundaries):
    """Which word each token belongs to, as the reference counts them."""
    special = (tokens == CLS_ID) | (tokens == SEP_ID)
    starts = (boundaries == 1) | special
    starts[1:] |= special[:-1]
    return np.cumsum(starts)


def statistics(instances, all_positions) -> dict[str, float]:
    """Shares of masked tokens by word length, and of runs by words in them."""
    word_lengths, runs = [], []
    for (tokens, _, _, boundaries), positions in zip(
        instances, all_positions, strict=True
    ):
        words = word_numbers(tokens, boundaries)
        word_lengths += np.bincount(words)[words[positions]].tolist()
        masked_words = np.unique(words[positions])
        breaks = np.flatnonzero(np.diff(masked_words) > 1) + 1
        runs += [len(run) for run in np.split(masked_words, breaks)]
    word_lengths, runs = np.array(word_lengths), np.array(runs)
    return {
        "tokens in one-piece words": (word_lengths == 1).mean(),
        "tokens in two-piece words": (word_lengths == 2).mean(),
        "tokens in longer words": (word_lengths > 2).mean(),
        "runs of one word": (runs == 1).mean(),
        "runs of two words": (runs == 2).mean(),
        "runs of three words": (runs == 3).mean(),
        "words in a run": runs.mean(),
    }


def outside(instances, all_positions, ours) -> list[str]:
    """The statistics in which a sample is not one of ours."""
    found = statistics(instances, all_positions)
    expected = [statistics(instances, positions) for positions in ours]
    names = []
    for name, value in found.items():
        values = np.array([row[name] for row in expected])
        if abs(value - values.mean()) > 4 * values.std():
            names.append(name)
    return names


def test_words_start_where_the_reference_has_them(instances, tokenizer):
    for tokens, _, _, boundaries in instances:
        special = (tokens == CLS_ID) | (tokens == SEP_ID)
        np.testing.assert_array_equal(
            tokenizer.word_starts[tokens] | special, boundaries == 1
        )


def test_number_of_predictions(instances, ours):
    for number, (tokens, _, positions, _) in enumerate(instances):
        budget = min(20, max(1, round(len(tokens) * 0.15)))
        assert len(positions) == budget
        assert {len(sample[number]) for sample in ours} == {budget}


def test_which_tokens_are_masked(instances, ours):
    golden = [positions for _, _, positions, _ in instances]
    assert outside(instances, golden, ours) == []


def test_what_they_become(instances):
    """80 % [MASK], 10 % kept: 4 standard deviations of a binomial."""
    before, after = (
        np.concatenate([row[k][row[2]] for row in instances]) for k in (0, 1)
    )
    tolerance = 4 / len(before) ** 0.5
    assert abs((after == MASK_ID).mean() - 0.8) < tolerance * 0.4
    assert abs((after == before).mean() - 0.1) < tolerance * 0.3


def test_the_comparison_can_fail(instances, ours, tokenizer, monkeypatch):
    """Longer n-grams more likely: the golden sample tells them apart."""

    def turned_round(n):
        return np.append(0, np.cumsum(np.arange(1, n + 1)))

    monkeypatch.setattr(pretraining, "_harmonic_numbers", turned_round)
    wrong = [sample(instances, tokenizer, seed) for seed in range(REPEATS)]
    golden = [positions for _, _, positions, _ in instances]
    assert "runs of one word" in outside(instances, golden, wrong)
