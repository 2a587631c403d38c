"""A counter-based random number generator: random bits without any state.

`fold(key, n)` is the n-th output of SplitMix64 (Steele et al. 2014, "Fast
splittable pseudorandom number generators", figure 17) seeded with `key`. Its
output can be the key of another call. A chain of calls hashes a path, such as
(seed, epoch, example, purpose, position), to 64 random bits.

Pretraining needs this instead of an ordinary generator, whose numbers depend
on how many were drawn before. Here each random choice is a pure function of
its path: a run can resume at any step, and any process can compute any
example, with the same result. The functions work on whole arrays.
"""

import numpy as np

# The constants of SplitMix64: the increment of its state (2**64 divided by the
# golden ratio) and two multipliers (David Stafford's variant 13).
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_WORD_BITS = 64


def fold(keys, counters, bits=np):
    """Computes 64 random bits for each pair of key and counter: uint64.

    `keys` are uint64, and `counters` integers from 0, which are broadcast.
    `bits` is the module that has `bitwise_xor` and `right_shift`: `numpy` for
    arrays, `tf.bitwise` for tensors.
    """
    # The arithmetic is modulo 2**64, so overflow is intended.
    with np.errstate(over="ignore"):
        counters = np.asarray(counters).astype("uint64")
        # SplitMix64 adds the increment once per output. The state before
        # output n is therefore known without computing the outputs 0 to n - 1.
        x = keys + (counters + np.uint64(1)) * _INCREMENT
        # The output function is a bijection in which each input bit affects
        # each output bit; shifts and multipliers are those of the paper.
        x = bits.bitwise_xor(x, bits.right_shift(x, np.uint64(30)))
        x = x * _FIRST_MULTIPLIER
        x = bits.bitwise_xor(x, bits.right_shift(x, np.uint64(27)))
        x = x * _SECOND_MULTIPLIER
        return bits.bitwise_xor(x, bits.right_shift(x, np.uint64(31)))


def uniform(random: np.ndarray) -> np.ndarray:
    """Converts uint64 random bits to float64 numbers in [0, 1)."""
    # A float64 has 53 bits of precision: the lowest 11 bits are dropped.
    return (random >> np.uint64(11)) * 2.0**-53


def below(random: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Converts uint64 random bits to int64 numbers from 0 to limits - 1.

    They are uniform, up to the rounding of float64.
    """
    return (uniform(random) * limits).astype("int64")


def count_heads(keys: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """Counts the heads of R fair coins, flipped `flips` times each: int64 [R].

    `keys` has a random key for each coin, uint64 [R].
    """
    # A coin with n flips uses n bits of ceil(n / 64) random words. The words
    # of all coins are in one array: `coin` is the coin of each word, and `word`
    # is the number of the word within its coin, which is also its counter.
    words = -(-flips // _WORD_BITS)
    coin = np.repeat(np.arange(len(flips)), words)
    word = np.arange(len(coin)) - np.repeat(np.cumsum(words) - words, words)
    bits = np.unpackbits(
        fold(keys[coin], word).view("uint8").reshape(-1, _WORD_BITS // 8),
        axis=1,
    )
    # The last word of a coin may have more bits than the coin has flips left.
    used = np.arange(_WORD_BITS) < (flips[coin] - _WORD_BITS * word)[:, None]
    heads = np.bincount(coin, (bits * used).sum(1), len(flips))
    return heads.astype("int64")
