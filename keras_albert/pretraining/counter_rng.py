"""Random numbers as functions of what they are for.

`fold(key, n)` is number n of SplitMix64 (Steele et al. 2014, "Fast splittable
pseudorandom number generators", figure 17) started at `key`. Chained, it turns
a path such as seed, epoch, example, use, position into 64 random bits, for
whole arrays at once and in any order.
"""

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_WORD = 64  # bits


def fold(keys, counters, bits=np):
    """64 random bits for each pair of key and counter.

    Args:
        keys: uint64, an array or a tensor, of any shape.
        counters: integers, 0 or more, broadcast against `keys`; an array.
        bits: where `bitwise_xor` and `right_shift` are: `numpy`, or
            `tf.bitwise` for tensors.

    Returns:
        uint64, array or tensor.
    """
    with np.errstate(over="ignore"):  # modulo 2**64 is meant
        counters = np.asarray(counters).astype("uint64")
        x = keys + (counters + np.uint64(1)) * _STEP
        x = bits.bitwise_xor(x, bits.right_shift(x, np.uint64(30)))
        x = x * _FIRST_FACTOR
        x = bits.bitwise_xor(x, bits.right_shift(x, np.uint64(27)))
        x = x * _SECOND_FACTOR
        return bits.bitwise_xor(x, bits.right_shift(x, np.uint64(31)))


def uniform(random: np.ndarray) -> np.ndarray:
    """uint64 random bits -> float64 in [0, 1)."""
    return (random >> np.uint64(11)) * 2.0**-53


def below(random: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """uint64 random bits -> int64 in 0 ... limits - 1, equally likely."""
    return (uniform(random) * limits).astype("int64")


def count_heads(keys: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """How often each of several fair coins shows heads.

    Args:
        keys: uint64 [R], one a coin.
        flips: int [R], 0 or more.

    Returns:
        int64 [R], binomial with chance 1/2.
    """
    words = -(-flips // _WORD)
    coin = np.repeat(np.arange(len(flips)), words)
    word = np.arange(len(coin)) - np.repeat(np.cumsum(words) - words, words)
    bits = np.unpackbits(
        fold(keys[coin], word).view("uint8").reshape(-1, _WORD // 8), axis=1
    )
    # The last word of a coin has bits too many.
    used = np.arange(_WORD) < (flips[coin] - _WORD * word)[:, None]
    heads = np.bincount(coin, (bits * used).sum(1), len(flips))
    return heads.astype("int64")
