"""Projections that make better vectors of texts without training.

Whitening is of Su et al. 2021, arXiv:2103.15316. Letters: N texts, H hidden
size, E embedding size, D size of the vectors.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_albert.errors import (
    AlbertError,
    check_positive_number,
    check_probability,
)
from keras_albert.modeling.config import IDF, IDF_FIRST_LAST, IDF_POOLINGS
from keras_albert.modeling.inputs import as_texts, vocabulary_of

if TYPE_CHECKING:
    from keras_albert.modeling.text_embedding import AlbertForTextEmbedding

# The variance of a direction in which texts hardly differ is raised by this
# share of the largest variance before its square root divides: otherwise the
# rounding errors there would count as much as what the texts say.
_LEAST_VARIANCE = 1e-4
# Variances below this share of the mean square are those of rounding errors.
_ROUNDING = 1e-10


def whitened(
    model: "AlbertForTextEmbedding", texts: Sequence[str], size: int
) -> "AlbertForTextEmbedding":
    """See `AlbertForTextEmbedding.whitened`."""
    own = _projection(model)
    texts = _enough_texts(model, texts, size, ", or fewer `dimensions`")
    plain = model.with_projection(own, normalize=False)
    kernel, bias = whitening(plain.encode(texts, normalize=False), size)
    if own:
        kernel, bias = own[0] @ kernel, own[1] @ kernel + bias
    return model.with_projection((kernel, bias))


def with_words(
    model: "AlbertForTextEmbedding", texts: Sequence[str], share: float
) -> "AlbertForTextEmbedding":
    """See `AlbertForTextEmbedding.with_words`."""
    if model.pooling not in IDF_POOLINGS:
        raise AlbertError(
            f"words are added to vectors of the pooling {IDF!r}. Received: "
            f"pooling={model.pooling!r}. Make or train the vectors with "
            f"pooling={IDF!r}."
        )
    if model.pooling != IDF:
        raise AlbertError(
            "the vectors of this model have words already. Give the model "
            "from before they were added."
        )
    check_positive_number("share", share)
    check_probability("share", share)
    hidden = model.config.hidden_size
    size = min(model.config.embedding_size, hidden)
    own = _projection(model) or (np.eye(hidden), np.zeros(hidden))
    texts = _enough_texts(model, texts, size)
    both = model.with_projection(None, False, IDF_FIRST_LAST)
    found = both.encode(texts, normalize=False)  # [N, 2H]
    words, last = found[:, :hidden], found[:, hidden:]
    of_words = _of_length(share**0.5, words, *whitening(words, size))
    of_model = _of_length((1 - share) ** 0.5, last, *own)
    kernel = np.zeros((2 * hidden, model.size + size))
    kernel[hidden:, : model.size], bias = of_model
    kernel[:hidden, model.size :], bias_of_words = of_words
    return both.with_projection(
        (kernel, np.append(bias, bias_of_words)), model.normalize
    )


def _of_length(
    length: float, vectors: np.ndarray, kernel: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A projection of [N, H], scaled: its root mean square length is given."""
    projected = vectors @ kernel + bias
    scale = length / np.sqrt(np.mean(np.sum(projected**2, axis=1)))
    return scale * kernel, scale * bias


def _projection(
    model: "AlbertForTextEmbedding",
) -> tuple[np.ndarray, np.ndarray] | None:
    """Kernel and bias of the projection; None if there is none.

    Raises AlbertError if it cannot be combined with another one.
    """
    projection = model.projection
    if projection is None:
        return None
    if projection.quantization_mode or projection.lora_enabled:
        raise AlbertError(
            "the projection of this model is quantized or has LoRA, and "
            "cannot be combined with another one. Take the model from before "
            "`quantize`, or merge the adapter with `keras-albert convert`."
        )
    kernel, bias = projection.get_weights()
    return kernel, bias


def _enough_texts(
    model: "AlbertForTextEmbedding",
    texts: Sequence[str],
    size: int,
    remedy: str = "",
) -> list[str]:
    """The different texts, of whose vectors `size` dimensions are kept.

    Raises AlbertError if they are too few, or there is no vocabulary.
    """
    vocabulary_of(model)
    texts = list(dict.fromkeys(as_texts(texts)))
    if len(texts) <= size:
        raise AlbertError(
            f"a projection to {size} dimensions is computed from more than "
            f"{size} different texts. Received: {len(texts)}. Give more "
            f"texts{remedy}."
        )
    return texts


def whitening(vectors: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Kernel [D, size] and bias [size] that whiten vectors [N, D], float32.

    N must be larger than `size`. The root mean square of the length of the new
    vectors is about 1.

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
