"""Losses of text embedding models, for examples of several texts.

Their batches are those of all replicas: each text is compared with the texts
of every device.

Letters: B rows of a replica, G rows of all replicas, T texts of a row, D size
of the vectors.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_albert.distribution.backend import loss_normalizer, whole_batch
from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_flag,
    check_positive,
    check_positive_number,
    is_number,
)
from keras_albert.training.config import COSINE_LOSSES, COSINE_TEMPERATURE

_NOT_ZERO = 1e-12  # avoids a division by 0 for a batch without weight
_IMPOSSIBLE = -1e9  # the similarity of what does not count


@keras.saving.register_keras_serializable("keras_albert")
class MultipleNegativesRanking(keras.losses.Loss):
    """Cross-entropy of finding a text's partner among those of the batch.

    Row i has a text a_i, its partner p_i and perhaps further texts that are not
    its partner. Its loss is the cross-entropy of p_i in the softmax, over the
    texts of all rows except the a_j, of their cosines with a_i divided by the
    temperature. A text that is equal to a_i or p_i does not count as negative,
    and neither does p_j if a_j is equal to a_i: it is right, too.

    Args:
        temperature: the divisor of the cosines.
        symmetric: also find a_i for p_i among all a_j, and take the mean of
            both losses.
        dimensions: sizes of vectors; the loss is the mean of those of the first
            n numbers of each vector, for each n (Matryoshka embeddings,
            Kusupati et al. 2022, arXiv:2205.13147). Empty for whole vectors.

    Call arguments:
        y_true: int [B, T], a number for each text, the same for equal texts.
        y_pred: float [B, T, D], T from 2 on.
        sample_weight: float [B]; ones when absent. The texts of a row of weight
            0 are no negatives of other rows.

    Raises:
        AlbertError: an argument is out of range, or there is one text a row.

    Source: Henderson et al. 2017 (arXiv:1705.00652), section 4.4, with the
    cosine of van den Oord et al. 2018 (arXiv:1807.03748).
    """

    def __init__(
        self,
        temperature: float = COSINE_TEMPERATURE,
        symmetric: bool = False,
        dimensions: Sequence[int] = (),
        name: str = "multiple_negatives_ranking",
        **kwargs: Any,
    ):
        check_positive_number("temperature", temperature)
        check_flag("symmetric", symmetric)
        _check_sizes(dimensions)
        super().__init__(name=name, **kwargs)
        self.temperature, self.symmetric = temperature, symmetric
        self.dimensions = tuple(dimensions)

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        """Computes the loss of a batch, a float32 scalar."""
        _check_texts(y_pred, 2)
        numbers = ops.cast(y_true, "int32")
        _check_numbers(numbers, y_pred)
        weight = _weights(sample_weight, y_pred)
        all_numbers, first = whole_batch(numbers)
        counts = whole_batch(weight)[0] > 0
        losses = []
        for size in self.dimensions or (None,):
            vectors = _normalized(y_pred[..., :size])
            all_vectors, _ = whole_batch(vectors)
            of_rows = self._cross_entropy(
                vectors[:, 0],
                numbers[:, :2],
                all_numbers[:, 0],
                ops.moveaxis(all_vectors[:, 1:], 1, 0),
                ops.transpose(all_numbers[:, 1:]),
                counts,
                first,
            )
            if self.symmetric:
                of_partners = self._cross_entropy(
                    vectors[:, 1],
                    ops.flip(numbers[:, :2], axis=1),
                    all_numbers[:, 1],
                    all_vectors[None, :, 0],
                    all_numbers[None, :, 0],
                    counts,
                    first,
                )
                of_rows = (of_rows + of_partners) / 2
            losses.append(of_rows)
        loss = sum(losses) / len(losses)
        normalizer = loss_normalizer(ops.sum(weight), _NOT_ZERO)
        return ops.sum(weight * loss) / normalizer

    def _cross_entropy(
        self,
        vectors,
        numbers,
        query_numbers,
        others,
        others_numbers,
        counts,
        first,
    ):
        """The cross-entropy of finding each text's partner, [B].

        In each row, the partner of one text, the query, is to be found.

        Args:
            vectors: [B, D], of the queries.
            numbers: [B, 2], the numbers of the queries and of their partners.
            query_numbers: [G], the numbers of the queries in all rows.
            others: [K, G, D], the vectors to choose from; the partner of the
                query in row i is [0, first + i].
            others_numbers: [K, G], the numbers of these texts.
            counts: bool [G], whether a row has a weight above 0.
            first: the index of the first of the B rows among all G.
        """
        rows = _arange(ops.shape(others)[1])
        own = rows[None] == first + _arange(ops.shape(vectors)[0])[:, None]
        others = ops.reshape(others, (-1, ops.shape(others)[-1]))
        logits = ops.matmul(vectors, ops.transpose(others)) / self.temperature
        is_other = (numbers[:, :1, None] != others_numbers[None]) & (
            numbers[:, 1:2, None] != others_numbers[None]
        )  # [B, K, G]
        allowed = is_other & counts[None, None]
        # The partner is the first of the K texts of its own row.
        is_first = _arange(ops.shape(others_numbers)[0]) == 0
        partner = is_first[None, :, None] & own[:, None]
        same = numbers[:, :1] == query_numbers[None]  # [B, G]
        allowed = allowed & ~(is_first[None, :, None] & same[:, None])
        allowed = ops.reshape(allowed | partner, ops.shape(logits))
        impossible = ops.cast(_IMPOSSIBLE, logits.dtype)
        logits = ops.where(allowed, logits, impossible)
        partner = ops.cast(ops.reshape(partner, ops.shape(logits)), "float32")
        return ops.logsumexp(logits, axis=1) - ops.sum(partner * logits, axis=1)

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "temperature": self.temperature,
            "symmetric": self.symmetric,
            "dimensions": self.dimensions,
        }


@keras.saving.register_keras_serializable("keras_albert")
class CosineLoss(keras.losses.Loss):
    """How far the cosines of pairs are from their scores.

    Args:
        kind: "ranking" for log(1 + sum of exp((cos_j - cos_i) / temperature)),
            over all pairs i and j of the batch of which i has the higher score
            (CoSENT; no scale of the scores is needed); "regression" for the
            mean squared difference of the cosine and the score, which is
            shifted and scaled to 0 to 1.
        temperature: the divisor of the cosines, for "ranking".
        score_range: lowest and highest score, for "regression".
        dimensions: as for MultipleNegativesRanking.

    Call arguments:
        y_true: float [B] or [B, 1], the scores.
        y_pred: float [B, 2, D].
        sample_weight: float [B]; ones when absent. For "ranking" only whether a
            weight is 0 counts.

    Raises:
        AlbertError: an argument is out of range, or there are not two texts a
            row.

    Source: Su 2022, "CoSENT", https://kexue.fm/archives/8847; Reimers and
    Gurevych 2019 (arXiv:1908.10084), section 3, for "regression".
    """

    def __init__(
        self,
        kind: str = COSINE_LOSSES[0],
        temperature: float = COSINE_TEMPERATURE,
        score_range: tuple[float, float] = (0.0, 1.0),
        dimensions: Sequence[int] = (),
        name: str = "cosine_loss",
        **kwargs: Any,
    ):
        check_choice("kind", kind, COSINE_LOSSES)
        check_positive_number("temperature", temperature)
        _check_sizes(dimensions)
        lowest, highest = score_range
        if not (is_number(lowest) and is_number(highest) and lowest < highest):
            raise AlbertError(
                "`score_range` must be the lowest and the highest score. "
                f"Received: {score_range}."
            )
        super().__init__(name=name, **kwargs)
        self.kind, self.temperature = kind, temperature
        self.score_range, self.dimensions = score_range, tuple(dimensions)

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        """Computes the loss of a batch, a float32 scalar."""
        _check_texts(y_pred, 2, 2)
        scores = ops.cast(ops.reshape(y_true, (-1,)), "float32")
        weight = _weights(sample_weight, y_pred)
        compute = self._ranking if self.kind == "ranking" else self._regression
        sizes = self.dimensions or (None,)
        losses = []
        for size in sizes:
            vectors = _normalized(y_pred[..., :size])
            cosines = ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
            losses.append(compute(scores, cosines, weight))
        return sum(losses) / len(losses)

    def _ranking(self, scores, cosines, weight):
        all_scores, all_cosines, all_weights = (
            whole_batch(x)[0] for x in (scores, cosines, weight)
        )
        higher = all_scores[:, None] > all_scores[None]
        counts = all_weights > 0
        higher = higher & counts[:, None] & counts[None]
        gaps = (all_cosines[None] - all_cosines[:, None]) / self.temperature
        gaps = ops.where(higher, gaps, ops.cast(_IMPOSSIBLE, gaps.dtype))
        nothing = ops.zeros((1,), "float32")  # exp(0) is the 1 in log(1 + ...)
        gaps = ops.concatenate([nothing, ops.reshape(gaps, (-1,))])
        # Every replica computes the loss of the whole batch: divided by their
        # number where the gradients of replicas are summed.
        return ops.logsumexp(gaps) / loss_normalizer(
            ops.ones((), "float32"), 0.0
        )

    def _regression(self, scores, cosines, weight):
        lowest, highest = self.score_range
        wanted = (scores - lowest) / (highest - lowest)
        normalizer = loss_normalizer(ops.sum(weight), _NOT_ZERO)
        return ops.sum(weight * (cosines - wanted) ** 2) / normalizer

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "temperature": self.temperature,
            "score_range": self.score_range,
            "dimensions": self.dimensions,
        }


def _check_sizes(dimensions: Sequence[int]) -> None:
    for size in dimensions:
        check_positive("dimensions", size)
    if len(set(dimensions)) < len(dimensions):
        raise AlbertError(
            "`dimensions` must differ from one another. Received: "
            f"{list(dimensions)}."
        )


def _weights(sample_weight, y_pred):
    if sample_weight is None:
        return ops.ones(ops.shape(y_pred)[:1], "float32")
    return ops.reshape(ops.cast(sample_weight, "float32"), (-1,))


def _normalized(vectors):
    """Vectors of length 1; one of zeros stays as it is."""
    vectors = ops.cast(vectors, "float32")
    squares = ops.sum(vectors**2, axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, _NOT_ZERO))


def _check_texts(y_pred, least: int, most: int | None = None) -> None:
    shape = tuple(y_pred.shape)
    is_known = len(shape) == 3 and isinstance(shape[1], int)
    if len(shape) != 3 or (
        is_known and not least <= shape[1] <= (most or shape[1])
    ):
        raise AlbertError(
            "the loss compares the texts of a row: expected vectors of the "
            f"shape [batch, {'2' if most else 'texts from 2 on'}, size]. "
            f"Received: {shape}. Call the model with `token_ids` of the shape "
            "[batch, texts, sequence]."
        )


def _check_numbers(numbers, y_pred) -> None:
    if getattr(numbers.shape, "rank", 2) is None:  # in a graph of TensorFlow
        return
    found, expected = tuple(numbers.shape), tuple(y_pred.shape[:2])
    is_right = len(found) == 2 and all(
        None in (size, wanted) or size == wanted
        for size, wanted in zip(found, expected, strict=True)
    )
    if not is_right:
        raise AlbertError(
            "the loss needs a whole number for each text, the same for equal "
            f"texts: labels of the shape {expected}. Received: {found}. If all "
            "texts differ, give np.arange(rows * texts).reshape(rows, texts)."
        )


def _arange(count):
    """0, 1 and so on, below `count`; Keras by itself counts in `floatx`."""
    return ops.arange(count, dtype="int32")
