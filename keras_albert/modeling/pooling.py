"""From the vectors of a text's tokens to one vector of the text.

Letters: B texts, S sequence length, H size of the vectors of tokens.
"""

from collections.abc import Callable, Iterable

import numpy as np
from keras import ops

from keras_albert.errors import AlbertError, check_positive
from keras_albert.modeling.config import IDF_POOLINGS
from keras_albert.text.model_inputs import Row

# The value of padding when the largest value of each unit is taken.
PADDED = -1e9
# Lower bound of the sum of a text's weights, so that nothing is divided by 0;
# as in sentence-transformers, whose weights may be below 1.
LEAST_SUM = 1e-9


def _mean(x, mask):
    mask = ops.expand_dims(ops.cast(mask, "float32"), -1)  # [B, S, 1]
    return ops.sum(x * mask, axis=1) / ops.maximum(
        ops.sum(mask, axis=1), LEAST_SUM
    )


def _max(x, mask):
    # Not ops.max: its gradient finds the largest element by comparing, and XLA
    # may compute the vectors a second time for that, rounded differently. Then
    # no element is equal, and the gradient is 0 or NaN. top_k keeps positions.
    mask = ops.expand_dims(ops.cast(mask, "bool"), -1)
    x = ops.transpose(ops.where(mask, x, PADDED), (0, 2, 1))
    return ops.squeeze(ops.top_k(x, 1)[0], axis=-1)


# From vectors [B, S, H] and weights [B, S], 0 for padding, to [B, H]
POOL: dict[str, Callable] = {
    "mean": _mean,
    "weighted_layers": _mean,
    **dict.fromkeys(IDF_POOLINGS, _mean),
    "max": _max,
    "cls": lambda x, mask: x[:, 0],
}


def inverse_document_frequencies(
    rows: Iterable[Row], vocab_size: int
) -> np.ndarray:
    """The weight of each piece of a vocabulary, float32 [vocab_size].

    It is log((1 + N) / (1 + n)) + 1 for a piece in n of N rows, as in
    scikit-learn's TfidfVectorizer. [CLS] and [SEP], in all rows, have 1.
    """
    count, found = 0, np.zeros(vocab_size, "int64")
    for row in rows:
        found[np.unique(row.token_ids)] += 1
        count += 1
    return (np.log((1 + count) / (1 + found)) + 1).astype("float32")


def normalized(vectors: np.ndarray) -> np.ndarray:
    """Vectors [N, D] scaled to length 1; a vector of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def checked_dimensions(dimensions: int | None, size: int) -> int:
    """`dimensions`, or `size` if it is None.

    Raises AlbertError if vectors of `size` numbers do not have so many.
    """
    if dimensions is None:
        return size
    check_positive("dimensions", dimensions)
    if dimensions > size:
        raise AlbertError(
            f"`dimensions` must be at most {size}, the size of the vectors. "
            f"Received: {dimensions}."
        )
    return dimensions
