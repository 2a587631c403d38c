"""Projections that make better vectors of texts without training.

A projection is a kernel and a bias. Letters: N texts, H hidden size, D size of
the vectors, W numbers of the words.
"""

import numpy as np

from keras_albert.errors import AlbertError

Projection = tuple[np.ndarray, np.ndarray]

# The variance of a direction in which texts hardly differ is raised by this
# share of the largest variance before its square root divides: otherwise the
# rounding errors there would count as much as what the texts say.
_LEAST_VARIANCE = 1e-4
# Variances below this share of the mean square are those of rounding errors.
_ROUNDING = 1e-10


def whitening(vectors: np.ndarray, size: int) -> Projection:
    """Kernel [D, size] and bias [size] that whiten vectors [N, D], float32.

    Source: Su et al. 2021, arXiv:2103.15316. N must be larger than `size`. The
    root mean square of the length of the new vectors is about 1.

    Raises AlbertError if all vectors are equal.
    """
    vectors = vectors.astype("float64")
    mean = vectors.mean(axis=0)
    around = vectors - mean
    variances, directions = np.linalg.eigh(around.T @ around / len(vectors))
    # eigh returns the smallest first
    variances = variances[: -size - 1 : -1]
    directions = directions[:, : -size - 1 : -1]
    if variances[0] <= _ROUNDING * np.mean(vectors**2):
        raise AlbertError(
            "the vectors of all texts are equal, so that nothing tells them "
            "apart. Give texts that the vocabulary can read."
        )
    variances = variances + _LEAST_VARIANCE * variances[0]
    kernel = directions / np.sqrt(size * variances)
    return kernel.astype("float32"), (-mean @ kernel).astype("float32")


def beside_words(
    vectors: np.ndarray, projection: Projection, size: int, share: float
) -> Projection:
    """A projection to the vectors of a model, followed by those of the words.

    Args:
        vectors: of each text what the first layer reads, followed by what the
            last one writes, pooled: [N, 2H].
        projection: that of the model, from H to D numbers.
        size: W; the words are whitened to so many numbers.
        share: that of the words in the mean square length.

    Returns:
        kernel [2H, D + W] and bias [D + W].
    """
    hidden, given = projection[0].shape
    read, written = vectors[:, :hidden], vectors[:, hidden:]
    words = _of_length(share**0.5, read, whitening(read, size))
    model = _of_length((1 - share) ** 0.5, written, projection)
    kernel = np.zeros((2 * hidden, given + size))
    kernel[hidden:, :given], kernel[:hidden, given:] = model[0], words[0]
    return kernel, np.append(model[1], words[1])


def _of_length(
    length: float, vectors: np.ndarray, projection: Projection
) -> Projection:
    """The projection, scaled: the root mean square of the results' lengths."""
    kernel, bias = projection
    projected = vectors @ kernel + bias
    scale = length / np.sqrt(np.mean(np.sum(projected**2, axis=1)))
    return scale * kernel, scale * bias
