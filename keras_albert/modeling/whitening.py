"""Projections that make better vectors of texts without training.

Whitening is of Su et al. 2021, arXiv:2103.15316. Letters: N texts, H hidden
size, E embedding size, D size of the vectors.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_albert.errors import (
    AlbertError,
    check_positive_number,
    check_probability,
)
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
    plain = _with_projection(model, own, normalize=False)
    kernel, bias = whitening(plain.encode(texts, normalize=False), size)
    if own:
        kernel, bias = own[0] @ kernel, own[1] @ kernel + bias
    return _with_projection(model, (kernel, bias), model.normalize)


def with_words(
    model: "AlbertForTextEmbedding", texts: Sequence[str], share: float
) -> "AlbertForTextEmbedding":
    """See `AlbertForTextEmbedding.with_words`."""
    if model.pooling != "idf":
        raise AlbertError(
            'words are added to the vectors of a model with pooling "idf". '
            f"Received: pooling={model.pooling!r}."
        )
    check_positive_number("share", share)
    check_probability("share", share)
    hidden = model.config.hidden_size
    size = min(model.config.embedding_size, hidden)
    own = _projection(model) or (np.eye(hidden), np.zeros(hidden))
    texts = _enough_texts(model, texts, size)
    both = type(model)(model.backbone, "idf_first_last", None, model.max_tokens)
    both.token_weights.assign(ops.convert_to_numpy(model.token_weights))
    found = both.encode(texts, normalize=False)  # [N, 2H]
    words, last = found[:, :hidden], found[:, hidden:]
    vectors = last @ own[0] + own[1]
    factor = np.sqrt((1 - share) / np.mean(np.sum(vectors**2, axis=1)))
    kernel, bias = whitening(words, size)
    kernels = np.zeros((2 * hidden, model.size + size))
    kernels[hidden:, : model.size] = factor * own[0]
    kernels[:hidden, model.size :] = np.sqrt(share) * kernel
    biases = np.append(factor * own[1], np.sqrt(share) * bias)
    return _with_projection(both, (kernels, biases), model.normalize)


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
            f"to whiten vectors with {size} dimensions takes more than {size} "
            f"different texts. Received: {len(texts)}. Give more texts{remedy}."
        )
    return texts


def _with_projection(
    model: "AlbertForTextEmbedding",
    weights: tuple[np.ndarray, np.ndarray] | None,
    normalize: bool,
) -> "AlbertForTextEmbedding":
    """The encoder and pooling of a model, with another projection, or none."""
    units = len(weights[1]) if weights else None
    copy = type(model)(
        model.backbone, model.pooling, units, model.max_tokens, normalize
    )
    if weights:
        copy.projection.set_weights(list(weights))
    for name in ("layer_weights", "token_weights"):
        value = getattr(model, name)
        if value is not None:
            getattr(copy, name).assign(ops.convert_to_numpy(value))
    return copy


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
