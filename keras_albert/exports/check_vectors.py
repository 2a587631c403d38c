"""Compares the vectors of an export with those of its model."""

from collections.abc import Sequence

import numpy as np

from keras_albert.modeling.pooling import normalized

# Least cosine of each vector of the export with that of the model, by the data
# type of the weights or of the computation. A limit for differences of single
# numbers is not suitable: whitening multiplies rounding errors in directions in
# which the vectors of texts hardly differ.
LEAST_COSINES = {
    "float32": 0.9999,
    "float16": 0.95,
    "bfloat16": 0.95,
    "int8": 0.95,
}
NEIGHBOURS = 10  # nearest texts that are compared


def least_allowed(weights: str, compute: str) -> float:
    """The least cosine that an export of these data types may have."""
    return min(LEAST_COSINES[weights], LEAST_COSINES[compute])


def least_cosine(expected: Sequence, found: Sequence) -> float:
    """The lowest cosine of two vectors of a text; NaN if a number is NaN."""
    ours, theirs = _unit(expected), _unit(found)
    return float((ours * theirs).sum(axis=1).min())


def vectors_agree(
    expected: Sequence, found: Sequence
) -> dict[str, float | None]:
    """How well vectors, and the order of texts by their cosines, agree.

    `cosine` is the lowest of two vectors of a text, and `neighbours` the share
    of each text's NEIGHBOURS nearest texts that both agree on, or None if there
    is a single text; `compared` is how many these are. Only `cosine` is judged:
    among texts that are almost equally close, differences too small to matter
    change which are nearest, so that no least share fits all tables.
    """
    ours, theirs = _unit(expected), _unit(found)
    count = min(NEIGHBOURS, len(ours) - 1)
    nearest = []
    for vectors in (ours, theirs):
        cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, -np.inf)  # a text is not its own neighbour
        nearest.append(np.argsort(-cosines, axis=1)[:, :count])
    shared = [
        len({*a} & {*b})
        for a, b in zip(*(each.tolist() for each in nearest), strict=True)
    ]
    return {
        "cosine": float((ours * theirs).sum(axis=1).min()),
        "neighbours": float(np.mean(shared)) / count if count else None,
        "compared": count,
    }


def _unit(vectors: Sequence) -> np.ndarray:
    """The vectors of all texts, [N, D], with a length of 1."""
    return normalized(np.concatenate([np.atleast_2d(each) for each in vectors]))
