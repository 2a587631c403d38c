"""Projections that make better vectors of texts without training.

A projection is a kernel and a bias. Letters: N texts, H hidden size, D size of
the vectors, W numbers that describe the words of a text: the mean of the
embedding output, weighted by rarity and whitened.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_albert.errors import (
    AlbertError,
    check_positive_number,
    check_probability,
)
from keras_albert.modeling.config import IDF, IDF_FIRST_LAST
from keras_albert.modeling.inputs import as_texts, vocabulary_of
from keras_albert.modeling.pooling import checked_dimensions
from keras_albert.text.normalization import normalize

if TYPE_CHECKING:
    from keras_albert.modeling.text_embedding import (
        AlbertForTextEmbedding as Embedder,
    )

Projection = tuple[np.ndarray, np.ndarray]

# The variance of a direction in which texts hardly differ is raised by this
# share of the largest variance before its square root divides: otherwise the
# rounding errors there would count as much as what the texts say.
_LEAST_VARIANCE = 1e-4
# Variances below this share of the mean square are those of rounding errors.
_ROUNDING = 1e-10


def whitened(
    model: "Embedder", texts: Sequence[str], dimensions: int | None
) -> "Embedder":
    """A model whose vectors of `texts` have uncorrelated numbers.

    The projection of the result includes that of `model`, and leaves
    `dimensions` numbers, or as many as `model` has if it is None. The encoder
    is shared with `model`. `AlbertForTextEmbedding.whitened` is the public
    form, and lists what raises AlbertError.
    """
    own = _projection_of(model)
    size = checked_dimensions(dimensions, model.size)
    texts = _enough_texts(model, texts, size)
    plain = model.with_projection(own, normalize=False)
    kernel, bias = whitening(plain.encode(texts, normalize=False), size)
    if own:
        kernel, bias = own[0] @ kernel, own[1] @ kernel + bias
    return model.with_projection((kernel, bias), model.normalize)


def with_words(
    model: "Embedder", texts: Sequence[str], share: float
) -> "Embedder":
    """A model whose vectors also contain numbers that describe the words.

    `share` is the part of the squared length of a vector, averaged over
    `texts`, that these numbers get. The encoder is shared with `model`.
    `AlbertForTextEmbedding.with_words` is the public form, and lists what
    raises AlbertError.
    """
    if model.pooling != IDF:
        raise AlbertError(
            f"words are added to vectors of the pooling {IDF!r}. Received: "
            f"pooling={model.pooling!r}. Make or train the vectors with "
            f"pooling={IDF!r}, or take them from before words were added."
        )
    check_positive_number("share", share)
    check_probability("share", share)
    hidden = model.config.hidden_size
    size = min(model.config.embedding_size, hidden)
    own = _projection_of(model) or (np.eye(hidden), np.zeros(hidden))
    texts = _enough_texts(model, texts, size)
    both = model.with_projection(None, False, IDF_FIRST_LAST)
    vectors = both.encode(texts, normalize=False)
    found = beside_words(vectors, own, size, share)
    return both.with_projection(found, model.normalize)


def _projection_of(model: "Embedder") -> Projection | None:
    """The weights of a model's projection; None if it has none.

    Raises AlbertError if it cannot be combined with another one.
    """
    projection = model.projection
    if projection is None:
        return None
    if projection.quantization_mode or projection.lora_enabled:
        raise AlbertError(
            "the projection of this model is quantized or has LoRA, and "
            "cannot be combined with another one. Take the model from "
            "before `quantize`, or merge the adapter with `keras-albert "
            "convert`."
        )
    kernel, bias = projection.get_weights()
    return kernel, bias


def _enough_texts(
    model: "Embedder", texts: Sequence[str], size: int
) -> list[str]:
    """The texts without repetitions, if they suffice to compute a projection.

    Raises AlbertError if there are no more than `size` of them, the number of
    dimensions of the projection, or if the model has no vocabulary.
    """
    settings = vocabulary_of(model).settings
    # Texts that differ in case alone, for example, have the same vector.
    different = {normalize(text, **settings): text for text in as_texts(texts)}
    texts = list(different.values())
    if len(texts) <= size:
        raise AlbertError(
            f"a projection to {size} dimensions is computed from more than "
            f"{size} different texts. Received: {len(texts)}. Give more "
            "texts, or a smaller number of `dimensions`."
        )
    return texts


def whitening(vectors: np.ndarray, size: int) -> Projection:
    """Kernel [D, size] and bias [size] that whiten vectors [N, D], float32.

    Source: Su et al. 2021, arXiv:2103.15316. N must be larger than `size`. The
    root mean square of the length of the new vectors is about 1.

    Raises AlbertError if all vectors are equal.
    """
    vectors = vectors.astype("float64")
    mean = vectors.mean(axis=0)
    around = vectors - mean
    # An eigendecomposition of the covariance [D, D] and not an SVD of the
    # vectors [N, D], whose cost and memory would grow with the texts.
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
    """Makes a projection to a model's vector followed by numbers of the words.

    Args:
        vectors: the pooled embedding output of each text, followed by its
            pooled output of the last layer: [N, 2H].
        projection: the model's own projection, from H to D numbers.
        size: W, how many numbers describe the words.
        share: the part of the mean squared length that these numbers get.

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
    """Scales a projection so that its results have a given length.

    `length` is the root mean square of the lengths of the projected `vectors`.
    """
    kernel, bias = projection
    projected = vectors @ kernel + bias
    scale = length / np.sqrt(np.mean(np.sum(projected**2, axis=1)))
    return scale * kernel, scale * bias
