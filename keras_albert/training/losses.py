"""The pretraining losses: masked-LM + sentence order, equal weight."""

from typing import Any

import keras
from keras import ops

from keras_albert.distribution.backend import loss_normalizer
from keras_albert.errors import AlbertError, check_positive_number

MASKED_LM_LOSS_EPSILON = 1e-5  # reference run_pretraining.py, denominator


_NOT_ZERO = 1e-12  # lost beside any weight; a batch without any is 0


@keras.saving.register_keras_serializable("keras_albert")
class WeightedCrossEntropy(keras.losses.Loss):
    """sum(weight * cross-entropy) / (sum(weight) + epsilon).

    One normaliser for the whole batch, so that a prediction counts the same
    in a row with few and in a row with many; a batch without any is 0.

    Call arguments:
        y_true: int [...], y_pred: float logits [..., V],
        sample_weight: float [...]; ones when absent.

    Source: reference run_pretraining.py L332-335.
    """

    def __init__(
        self,
        epsilon: float = MASKED_LM_LOSS_EPSILON,
        name: str = "weighted_cross_entropy",
        **kwargs: Any,
    ):
        check_positive_number("epsilon", epsilon)
        super().__init__(name=name, **kwargs)
        self.epsilon = epsilon

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        # `keras.losses.Loss.__call__` divides by a count of examples: replaced.
        logits = ops.cast(y_pred, "float32")
        _check_shape("y_true", y_true, logits.shape[:-1])
        losses = keras.losses.sparse_categorical_crossentropy(
            y_true, logits, from_logits=True
        )
        if sample_weight is None:
            sample_weight = ops.ones_like(losses)
        weight = ops.cast(sample_weight, "float32")
        # Of another rank it would be broadcast, along the wrong axis perhaps.
        _check_shape("sample_weight", weight, losses.shape)
        normalizer = loss_normalizer(ops.sum(weight), self.epsilon)
        return ops.sum(weight * losses) / normalizer

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "epsilon": self.epsilon}


class WeightedMean(keras.losses.Loss):
    """sum(weight * loss) / sum(weight), over the rows of all replicas.

    Keras's reduction "mean_with_sample_weight" is over those of one replica.

    Args:
        loss: with reduction "none".
    """

    def __init__(self, loss: keras.losses.Loss):
        super().__init__(name=loss.name)
        self.loss = loss

    def __call__(self, y_true, y_pred, sample_weight=None):
        """See the class; a batch without weight is 0."""
        losses = self.loss(y_true, y_pred)
        if sample_weight is None:
            sample_weight = ops.ones_like(losses)
        weight = ops.cast(sample_weight, losses.dtype)
        normalizer = loss_normalizer(ops.sum(weight), _NOT_ZERO)
        return ops.sum(weight * losses) / normalizer


def _check_shape(name: str, value, expected) -> None:
    """None is any size."""
    found, expected = tuple(ops.shape(value)), tuple(expected)
    sizes = zip(found, expected, strict=False)
    if len(found) != len(expected) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes
    ):
        raise AlbertError(
            f"`{name}` must have the shape of the logits without the last "
            f"axis, {expected}. Received: {found}."
        )
