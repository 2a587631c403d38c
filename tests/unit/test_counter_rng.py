"""The counter-based random numbers: their values, and that they are random."""

import numpy as np
import pytest

from keras_albert.pretraining.counter_rng import (
    below,
    count_heads,
    fold,
    uniform,
)

pytestmark = pytest.mark.any_backend

KEYS = fold(np.uint64(7), np.arange(2000))


def test_fold_is_splitmix64():
    """The first outputs of its published C code, seeded with 0 and 1234567."""
    assert [hex(x) for x in fold(np.uint64(0), np.arange(3))] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    assert fold(np.uint64(1234567), np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_tensors_have_the_same_numbers():
    tf = pytest.importorskip("tensorflow")
    tensor = fold(tf.constant(KEYS)[:, None], np.arange(7), tf.bitwise)
    np.testing.assert_array_equal(
        tensor.numpy(), fold(KEYS[:, None], np.arange(7))
    )


def paths():
    """Neighbours along each step of a path: seeds, epochs, examples, uses."""
    numbers = np.arange(2000)
    deep = fold(fold(np.uint64(3), 1), 5)
    return {
        "seeds": fold(fold(fold(numbers.astype("uint64"), 1), 0), 0),
        "epochs": fold(fold(fold(np.uint64(3), 1), numbers), 0),
        "examples": fold(fold(deep, numbers), 3),
        "positions": fold(fold(deep, 3), numbers),
    }


@pytest.mark.parametrize("name", list(paths()))
def test_neighbours_are_uniform_and_independent(name):
    random = paths()[name]
    bits = np.unpackbits(random.view("uint8").reshape(-1, 8), axis=1)
    count, width = bits.shape
    assert width == 64
    tolerance = 5 / count**0.5
    # Each bit is fair; no two bits go together, nor do neighbours.
    signs = 2.0 * bits - 1
    assert np.abs(signs.mean(0)).max() < tolerance
    together = signs.T @ signs / count - np.eye(width)
    assert np.abs(together).max() < tolerance
    neighbours = signs[1:].T @ signs[:-1] / count
    assert np.abs(neighbours).max() < tolerance
    # The top bits fill 20 boxes evenly: chi-square of 19 degrees of freedom.
    boxes = np.bincount((uniform(random) * 20).astype(int), minlength=20)
    assert ((boxes - count / 20) ** 2 / (count / 20)).sum() < 50


def test_uses_of_an_example_are_independent():
    uses = uniform(fold(KEYS[:, None], np.arange(8)))
    correlation = np.corrcoef(uses.T) - np.eye(8)
    assert np.abs(correlation).max() < 5 / len(KEYS) ** 0.5


def test_no_two_paths_end_alike():
    keys = fold(fold(KEYS[:300], 0)[:, None], np.arange(300)).ravel()
    assert len(np.unique(keys)) == len(keys)


def test_below():
    random = fold(np.uint64(1), np.arange(70_000))
    numbers = below(random, 7)
    counts = np.bincount(numbers)
    assert len(counts) == 7
    assert np.abs(counts - 10_000).max() < 5 * 10_000**0.5
    assert below(random[:3], np.array([1, 1, 1])).tolist() == [0, 0, 0]
    largest = np.array([2**64 - 1], "uint64")
    assert uniform(largest) < 1
    assert below(largest, 2**31).tolist() == [2**31 - 1]


@pytest.mark.parametrize("flips", [1, 5, 64, 131])
def test_heads_are_binomial(flips):
    heads = count_heads(KEYS, np.full(len(KEYS), flips))
    assert heads.min() >= 0 and heads.max() <= flips
    deviation = (flips / 4) ** 0.5
    error = deviation / len(KEYS) ** 0.5
    assert abs(heads.mean() - flips / 2) < 5 * error
    assert abs(heads.std() / deviation - 1) < 5 / (2 * len(KEYS)) ** 0.5


def test_heads_depend_on_their_own_key_alone():
    flips = np.arange(len(KEYS)) % 200
    together = count_heads(KEYS, flips)
    assert together[0] == 0  # no flip
    for i in (0, 1, 63, 64, 65, 128, 199, 200):
        alone = count_heads(KEYS[i : i + 1], flips[i : i + 1])
        assert alone.tolist() == [together[i]]
    assert count_heads(KEYS[:2], np.zeros(2, int)).tolist() == [0, 0]
