"""Scores of vectors of texts: cosines of pairs, and the ranks in a search.

Letters: N examples, T texts of an example, D size of the vectors.
"""

import collections
from collections.abc import Callable, Sequence

import numpy as np
from scipy import sparse

from keras_albert.modeling.pooling import normalized
from keras_albert.tasks import metrics

RANKED_AT_ONCE = 1_000  # texts, whose cosines with all others are in memory
FOUND_AMONG = 10  # the first results that count for recall and nDCG


def cosines(outputs: Sequence) -> np.ndarray:
    """The cosine of the two texts of each example, [N]."""
    first, second = (_column(outputs, place) for place in range(2))
    if sparse.issparse(first):
        return np.asarray(first.multiply(second).sum(axis=1)).ravel()
    return np.sum(first * second, axis=1)


def search_scores(
    outputs: Sequence, numbers: np.ndarray, others=None
) -> dict[str, float]:
    """Scores of searching each text's partner among other texts.

    The mean reciprocal rank, the share that is found first or among the first
    FOUND_AMONG, and nDCG. Texts that are equally close are in any order: the
    scores are the means of all orders. For the arguments see `_ranks`.
    """
    closer, equal = _ranks(outputs, numbers, others)

    def mean(gain: Callable[[np.ndarray], np.ndarray]) -> float:
        gains = gain(np.arange((closer + equal).max() + 1))  # of ranks from 0
        total = np.concatenate([[0], np.cumsum(gains)])
        found = total[closer + equal + 1] - total[closer]
        return float(np.mean(found / (equal + 1)))

    return {
        "mrr": mean(lambda rank: 1 / (1 + rank)),
        "recall_at_1": mean(lambda rank: rank < 1),
        f"recall_at_{FOUND_AMONG}": mean(lambda rank: rank < FOUND_AMONG),
        f"ndcg_at_{FOUND_AMONG}": mean(
            lambda rank: (rank < FOUND_AMONG) / np.log2(2 + rank)
        ),
    }


def _ranks(outputs: Sequence, numbers: np.ndarray, others) -> np.ndarray:
    """How many other texts are closer than each text's partner, and as close.

    The texts to choose from are the partners and negatives of all examples,
    each once, and those whose vectors are `others`, [M, D]. `numbers` [N, T]
    has the same number for equal texts. Three kinds of text do not count as
    other texts: one equal to the partner, one equal to the text itself, and the
    partner of an equal text in another example, which is a right result, too.
    Returns int [2, N].
    """
    texts, partners = numbers[:, 0], numbers[:, 1]
    vectors = [_column(outputs, place) for place in range(numbers.shape[1])]
    stack = sparse.vstack if sparse.issparse(vectors[0]) else np.concatenate
    known, first = np.unique(numbers[:, 1:].T.ravel(), return_index=True)
    candidates = stack(vectors[1:])[first]
    own = np.searchsorted(known, partners)
    if others is not None:
        candidates = stack([candidates, _unit(others)])
        known = np.append(known, np.full(others.shape[0], -1))
    right = collections.defaultdict(list)  # candidates, by the text's number
    for text, place in zip(texts.tolist(), own.tolist(), strict=True):
        right[text].append(place)
    ranks = []
    # Some texts at a time: the cosines of all with all might not fit in memory.
    for start in range(0, len(numbers), RANKED_AT_ONCE):
        rows = np.arange(start, min(start + RANKED_AT_ONCE, len(numbers)))
        cosines = vectors[0][rows] @ candidates.T
        cosines = cosines.toarray() if sparse.issparse(cosines) else cosines
        wanted = cosines[np.arange(len(rows)), own[rows]][:, None]
        is_other = (known != partners[rows, None]) & (
            known != texts[rows, None]
        )
        for row, text in enumerate(texts[rows].tolist()):
            is_other[row, right[text]] = False
        # Texts of the same tokens have cosines that differ by rounding alone.
        closer = (cosines > wanted + metrics.ROUNDING) & is_other
        equal = (abs(cosines - wanted) <= metrics.ROUNDING) & is_other
        ranks.append([closer.sum(axis=1), equal.sum(axis=1)])
    return np.concatenate(ranks, axis=1)


def _column(outputs: Sequence, place: int):
    """The vectors of one text of each example, normalized: [N, D]."""
    if sparse.issparse(outputs[0]):
        return _unit(sparse.vstack([rows[place] for rows in outputs], "csr"))
    vectors = np.stack([rows[place] for rows in outputs])
    metrics.check_finite(vectors)  # nothing is closer to a text than NaN
    return _unit(vectors)


def _unit(vectors):
    """Scales vectors [N, D] to length 1.

    Sparse vectors are those of TF-IDF, which have that length already.
    """
    if sparse.issparse(vectors):
        return vectors
    return normalized(vectors.astype("float32"))
